"""Commands that use published models: `predict`, `fill-mask` and `embed`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from flows.cli import completion
from flows.cli.context import ABSOLUTE_PATH, INPUT_PATH, examples, hardware_options, project_for_inference
from model.common.errors import UserError
from tasks.project.progress import echo, warn

if TYPE_CHECKING:
    from model.config.hardware import HardwareOptions
    from model.inference.predictor import Finetuned


@click.command(epilog=examples("predict sst2 reviews.txt --text", "predict rte pairs.tsv --output answers.jsonl"))
@click.argument("task", shell_complete=completion.tasks)
@click.argument("rows", metavar="[FILE]", type=INPUT_PATH, default="-")
@click.option("--model", "model_dir", type=ABSOLUTE_PATH, help="Directory of a fine-tuned model.")
@click.option(
    "--encoder", shell_complete=completion.encoders, help="Use this encoder's model (default: the best one on dev)."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["auto", "lines", "tsv", "jsonl", "own"]),
    default="auto",
    help="Format of FILE; 'own' is the benchmark's file format.",
)
@click.option("--output", "-o", type=ABSOLUTE_PATH, help="Write to this file, complete or not at all.")
@click.option("--text", "as_text", is_flag=True, help="Print tab-separated text instead of JSON.")
@click.option("--window", type=click.IntRange(min=1), default=16_384, help="Number of rows that are batched together.")
@click.option("--skip-bad", is_flag=True, help="Answer {'error': ...} for unreadable rows, and count them.")
@hardware_options
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
    machine: HardwareOptions,
) -> None:
    """Predict with the fine-tuned model of TASK.

    Reads rows from FILE or standard input, as lines of text, TSV or JSON lines.
    """
    from tasks.predict.predict_io import STDIN, require, rows_of
    from tasks.registry.artifacts import best_model

    if model_dir is not None and encoder is not None:
        raise UserError("--model and --encoder cannot be combined; pass one of them")
    require(rows, output)
    if model_dir is None:
        project = project_for_inference()
        best = best_model(project.build / "finetune", task, encoder)
        model_dir = best.directory
        echo(f"using {best} from {project.relative(model_dir)}")
    finetuned = load_model(model_dir, task, machine)
    if rows == STDIN and sys.stdin.isatty():
        window = 1  # answer each typed line immediately
    num_bad = 0
    with _output_stream(output) as file:
        for answer in finetuned.stream(rows_of(rows, finetuned.row, format_), window_rows=window, skip_bad=skip_bad):
            num_bad += "error" in answer
            file.write(_encoded(_as_text(answer) if as_text else json.dumps(answer, ensure_ascii=False)))
            if window == 1:
                file.flush()
    if num_bad:
        warn(f"{num_bad} rows could not be read; their answers are {{'error': ...}}")


@click.command("fill-mask", epilog=examples('fill-mask "The capital of France is [MASK]."'))
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@click.option("--top", type=click.IntRange(min=1), default=5, help="Number of candidates for each mask.")
@click.option(
    "--encoder",
    shell_complete=completion.encoders,
    help="Name of an encoder of the run, or a directory with a pre-trained BERT.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per text.")
@hardware_options
def fill_mask(texts: tuple[str, ...], top: int, encoder: str | None, as_json: bool, machine: HardwareOptions) -> None:
    """Predict the words behind [MASK] in TEXT.

    A single - reads texts from standard input, one per line.
    """
    from model.inference.encoding import windowed
    from model.inference.fill_mask import load_fill_mask
    from tasks.predict.predict_io import STDIN, placed_lines, require

    encoder_dir = _encoder_dir(encoder)
    from_pipe = texts == ("-",)
    if from_pipe:
        require(STDIN)
    given = placed_lines(STDIN) if from_pipe else ((f"text {number}", text) for number, text in enumerate(texts))
    filler = load_fill_mask(encoder_dir, machine=machine)
    with _output_stream(None) as file:
        for window in windowed(given, lambda placed: len(placed[1])):
            names, rows = zip(*window)
            for answer in filler.fill(rows, top, names):
                lines = [json.dumps(answer, ensure_ascii=False)] if as_json else _mask_table(answer)
                file.write(_encoded("\n".join(lines)))


@click.command(epilog=examples("embed sentences.txt --output vectors.npy"))
@click.argument("texts", metavar="[FILE]", type=INPUT_PATH, default="-")
@click.option(
    "--encoder",
    shell_complete=completion.encoders,
    help="Name of an encoder of the run, or a directory with a BERT or a sentence encoder.",
)
@click.option(
    "--pooling", type=click.Choice(["mean", "cls", "max"]), help="Pooling of the hidden states (default: mean)."
)
@click.option("--normalize/--no-normalize", default=None, help="Scale vectors to length 1.")
@click.option("--max-length", type=click.IntRange(min=3), help="Maximum number of tokens (default: the encoder's).")
@click.option("--output", "-o", type=ABSOLUTE_PATH, help="A .jsonl, .npy, .safetensors or .parquet file.")
@hardware_options
def embed(
    texts: Path,
    encoder: str | None,
    pooling: Any,
    normalize: bool | None,
    max_length: int | None,
    output: Path | None,
    machine: HardwareOptions,
) -> None:
    """Compute a sentence vector for each line of FILE.

    Without FILE, reads standard input.
    """
    from model.inference.embedder import load_embedder
    from model.inference.encoding import windowed
    from tasks.predict.predict_io import require, text_lines, write_vectors

    encoder_dir = _encoder_dir(encoder)
    require(texts, output)
    embedder = load_embedder(encoder_dir, pooling=pooling, normalize=normalize, max_length=max_length, machine=machine)
    chunks = ((window, embedder.embed(window)) for window in windowed(text_lines(texts), len))
    with _output_stream(None):
        count = write_vectors(output, chunks, embedder.width)
        scaled = ", scaled to length 1" if embedder.normalize else ""
        echo(f"{count} vectors of dimension {embedder.width}: {embedder.pooling} of the hidden states{scaled}")


def load_model(directory: Path, task: str, machine: HardwareOptions) -> Finetuned:
    """Load a fine-tuned model after checking its files against their recorded hashes."""
    from model.inference.predictor import load_finetuned
    from tasks.dvc.integrity import check_folder

    check_folder(directory)
    return load_finetuned(directory, task, machine=machine)


def _encoder_dir(encoder: str | None) -> Path:
    """Find the directory of an encoder that is given by its name or as a directory, and check its files."""
    from tasks.dvc.integrity import check_folder
    from tasks.registry.artifacts import encoder_folder

    if encoder is not None and Path(encoder).is_dir():
        directory = encoder_folder(Path(), str(Path(encoder).resolve()))
    else:
        project = project_for_inference()
        directory = encoder_folder(project.build / "pretrain", encoder)
        echo(f"using the encoder in {project.relative(directory)}")
    check_folder(directory)
    return directory


def _encoded(line: str) -> bytes:
    """Encode a line; bytes of a file's name that are not UTF-8, in messages, become JSON's escapes."""
    return line.encode(errors="backslashreplace") + b"\n"


def _as_text(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return ""
    if "entities" in answer:
        return "\t".join(f"{one['type']}:{one['text']}" for one in answer["entities"]).replace("\n", " ")
    shown = str(answer.get("text", answer["prediction"])).replace("\t", " ").replace("\n", " ")
    return f"{shown}\t{answer['score']:.4f}" if "score" in answer else shown


def _mask_table(answer: dict[str, Any]) -> Iterator[str]:
    yield answer["filled"]
    for mask in answer["masks"]:
        for number, candidate in enumerate(mask["candidates"]):
            position = "" if number else mask["start"]
            yield f"{position:>5}  {candidate['score']:7.4f}  {candidate['token']}"


@contextmanager
def _output_stream(output: Path | None) -> Iterator[BinaryIO]:
    """Open a file that appears only when the block has finished, or standard output.

    If the reader of standard output closes the pipe, as `head` does, the block ends quietly.
    """
    from tasks.predict.predict_io import replaced

    if output is not None:
        with replaced(output) as file:
            yield file
        return
    if sys.stdout is None:  # as Python has it if the descriptor is closed
        raise UserError("standard output: closed; give a file with --output")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Otherwise, Python reports an error when it flushes the rest of the buffer at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
