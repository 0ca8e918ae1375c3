"""The commands that use what a run has published. They import what they need when they run (see flows/cli/main.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flows.cli.context import project_here
from model.common.errors import UserError
from model.config.hardware import Machine
from tasks.project.project import Project


def machine_of(device: str, threads: int, precision: str) -> Machine:
    """Where to compute, as `compute_options` say it; 0 threads are all cores."""
    from tasks.jobs.resources import num_cores

    return Machine.parse(
        {"accelerator": device, "precision": precision, "num_threads": threads or num_cores()}, "--device, --threads"
    )


def compute_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where and how a command computes."""
    options = (
        click.option("--device", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", help="Where to compute."),
        click.option("--threads", type=click.IntRange(min=0), default=0, help="On a CPU; 0 takes all cores."),
        click.option(
            "--precision",
            type=click.Choice(["auto", "fp32", "bf16"]),
            default="auto",
            help="Of matrix products; auto takes what is faster.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def project_that_predicts() -> Project:
    """The project here, for a command that forks nothing: the tokenizer may use all cores."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return project_here()


@click.command()
@click.argument("task")
@click.argument("rows", metavar="[FILE]", type=click.Path(path_type=Path, allow_dash=True), default="-")
@click.option("--model", "model_dir", type=click.Path(path_type=Path), help="A folder with a fine-tuned model.")
@click.option("--encoder", help="Whose model of the run; otherwise the best on dev.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["auto", "lines", "tsv", "jsonl", "own"]),
    default="auto",
    help="Of FILE; own is the benchmark's.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write there, whole or not at all.")
@click.option("--text", "as_text", is_flag=True, help="Answers as text between tabs, not as JSON.")
@click.option("--window", type=click.IntRange(min=1), default=16_384, help="Rows answered together.")
@click.option("--skip-bad", is_flag=True, help="Answer {'error': ...} to rows that cannot be read, and count them.")
@compute_options
def predict(
    task: str,
    rows: Path,
    model_dir: Path | None,
    encoder: str | None,
    format_: Any,
    output: Path | None,
    as_text: bool,
    window: int,
    skip_bad: bool,
    **compute: Any,
) -> None:
    """Answer rows of FILE (lines, TSV or JSON lines; a pipe without it) with the fine-tuned model of a TASK."""
    from flows.cli.predict import predict_here

    if model_dir is not None and encoder is not None:
        raise UserError("--model names a folder and --encoder one of the run's; give one of them")
    rows, output, model_dir = _from_here(rows), output and output.resolve(), model_dir and model_dir.resolve()
    predict_here(
        None if model_dir is not None else project_that_predicts(),
        task,
        rows,
        model_dir=model_dir,
        encoder=encoder,
        format_=format_,
        output=output,
        as_text=as_text,
        window_rows=window,
        skip_bad=skip_bad,
        machine=machine_of(**compute),
    )


@click.command("fill-mask")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@click.option("--top", type=click.IntRange(min=1), default=5, help="Candidates for each mask.")
@click.option("--encoder", help="One of the run's by its name, or a folder with a pre-trained BERT.")
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each text.")
@compute_options
def fill_mask(texts: tuple[str, ...], top: int, encoder: str | None, as_json: bool, **compute: Any) -> None:
    """Say what an encoder puts where a TEXT has [MASK]; - reads lines from a pipe."""
    from flows.cli.predict import fill_mask_here

    project, encoder = _project_or_folder(encoder)
    fill_mask_here(project, texts, encoder=encoder, top=top, as_json=as_json, machine=machine_of(**compute))


@click.command()
@click.argument("texts", metavar="[FILE]", type=click.Path(path_type=Path, allow_dash=True), default="-")
@click.option("--encoder", help="One of the run's by its name, or a folder with a BERT or a sentence encoder.")
@click.option("--pooling", type=click.Choice(["mean", "cls", "max"]), help="Of the hidden states; mean.")
@click.option("--normalise/--no-normalise", default=None, help="Scale vectors to length 1.")
@click.option("--max-length", type=click.IntRange(min=3), help="In tokens; as long as the encoder can read.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A .jsonl, .npy, .safetensors or .parquet file.")
@compute_options
def embed(
    texts: Path,
    encoder: str | None,
    pooling: Any,
    normalise: bool | None,
    max_length: int | None,
    output: Path | None,
    **compute: Any,
) -> None:
    """Give each line of FILE (a pipe without it) a vector."""
    from flows.cli.predict import embed_here

    texts, output = _from_here(texts), output and output.resolve()
    project, encoder = _project_or_folder(encoder)
    embed_here(
        project,
        texts,
        encoder=encoder,
        pooling=pooling,
        normalise=normalise,
        max_length=max_length,
        output=output,
        machine=machine_of(**compute),
    )


def _from_here(path: Path) -> Path:
    """A file as the user names it, whose folder is not the project's; standard input stays itself."""
    return path if str(path) == "-" else path.resolve()


def _project_or_folder(encoder: str | None) -> tuple[Project | None, str | None]:
    """The project whose encoder is meant, or none where a folder is named."""
    if encoder is not None and Path(encoder).is_dir():
        return None, str(Path(encoder).resolve())
    return project_that_predicts(), encoder


COMMANDS = (predict, fill_mask, embed)
