"""Using what a run has published: `cloze predict`, `cloze fill-mask` and `cloze embed`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from model.config.hardware import Machine
from tasks.dvc.manifest import check_folder
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.registry.artifacts import best_model, encoder_folder

if TYPE_CHECKING:
    from model.inference.embedder import Pooling
    from model.inference.predictor import Finetuned
    from tasks.predict.predict_inputs import Format


def predict_here(
    project: Project | None,
    task: str,
    rows: Path,
    *,
    model_dir: Path | None,
    encoder: str | None,
    format_: Format,
    output: Path | None,
    as_text: bool,
    window_rows: int,
    skip_bad: bool,
    machine: Machine,
) -> None:
    """`cloze predict TASK [FILE]`: an answer for each row, as JSON lines or text."""
    from tasks.predict.predict_inputs import STDIN, require, rows_of

    require(rows)
    finetuned = _load(project, task, model_dir, encoder, machine)
    if rows == STDIN and sys.stdin.isatty():
        window_rows = 1  # who types a line wants its answer
    answers = finetuned.stream(rows_of(rows, finetuned.row, format_), window_rows=window_rows, skip_bad=skip_bad)
    num_bad = 0
    with _lines_to(output) as file:
        for answer in answers:
            num_bad += "error" in answer
            file.write((_as_text(answer) if as_text else json.dumps(answer, ensure_ascii=False)).encode() + b"\n")
            if window_rows == 1:
                file.flush()
    if num_bad:
        say(f"{num_bad} rows could not be read; in their places the answer is {{'error': ...}}")


def fill_mask_here(
    project: Project | None, texts: Sequence[str], *, encoder: str | None, top: int, as_json: bool, machine: Machine
) -> None:
    """`cloze fill-mask TEXT...`: what the encoder puts in place of each [MASK]."""
    from model.inference.fill_mask import load_fill_mask
    from tasks.predict.predict_inputs import STDIN, text_lines

    given = list(text_lines(STDIN)) if list(texts) == ["-"] else list(texts)
    folder = _encoder_folder(project, encoder)
    found = load_fill_mask(folder, machine=machine).fill(given, top)
    with _lines_to(None) as file:
        for answer in found:
            lines = [json.dumps(answer, ensure_ascii=False)] if as_json else list(_mask_table(answer))
            file.write(("\n".join(lines) + "\n").encode())


def embed_here(
    project: Project | None,
    texts: Path,
    *,
    encoder: str | None,
    pooling: Pooling | None,
    normalise: bool | None,
    max_length: int | None,
    output: Path | None,
    machine: Machine,
) -> None:
    """`cloze embed [FILE]`: a vector for each line."""
    from model.common.windowing import windowed
    from model.inference.embedder import load_embedder
    from tasks.predict.embedding_io import write_vectors
    from tasks.predict.predict_inputs import require, text_lines

    require(texts)
    embedder = load_embedder(
        _encoder_folder(project, encoder), pooling=pooling, normalise=normalise, max_length=max_length, machine=machine
    )

    def chunks() -> Iterator[tuple[list[str], Any]]:
        for window in windowed(text_lines(texts), len):
            yield window, embedder.embed(window)

    with _until_the_reader_leaves():
        count = write_vectors(output, chunks(), embedder.width)
        scaled = ", scaled to length 1" if embedder.normalise else ""
        say(f"{count} vectors of {embedder.width}: {embedder.pooling} of the hidden states{scaled}")


def _load(
    project: Project | None, task: str, model_dir: Path | None, encoder: str | None, machine: Machine
) -> Finetuned:
    """The model that is asked for; which one was taken is said."""
    if model_dir is not None:
        return _load_model(model_dir, task, machine)
    assert project is not None, "a model without a folder is one of a project"
    chosen = best_model(project.build / "finetune", task, encoder)
    say(f"taking {chosen} of {project.relative(chosen.directory)}")
    return _load_model(chosen.directory, task, machine)


def _load_model(directory: Path, task: str, machine: Machine) -> Finetuned:
    from model.inference.predictor import load_finetuned

    check_folder(directory)
    return load_finetuned(directory, task, machine=machine)


def _encoder_folder(project: Project | None, encoder: str | None) -> Path:
    if project is None:
        assert encoder is not None, "an encoder without a project is a folder"
        folder = encoder_folder(Path(), encoder)
    else:
        folder = encoder_folder(project.build / "pretrain", encoder)
        say(f"taking the encoder of {project.relative(folder)}")
    check_folder(folder)
    return folder


def _as_text(answer: dict[str, Any]) -> str:
    """An answer in a line, its parts between tabs."""
    if "error" in answer:
        return ""
    if "entities" in answer:
        return "\t".join(f"{one['type']}:{one['text']}" for one in answer["entities"]).replace("\n", " ")
    shown = answer.get("text", answer["prediction"])
    parts = [str(shown).replace("\t", " ").replace("\n", " ")]
    if "score" in answer:
        parts.append(f"{answer['score']:.4f}")
    return "\t".join(parts)


def _mask_table(answer: dict[str, Any]) -> Iterator[str]:
    yield answer["filled"]
    for mask in answer["masks"]:
        for number, candidate in enumerate(mask["candidates"]):
            place = f"{mask['start']:>5}" if number == 0 else " " * 5
            yield f"{place}  {candidate['score']:7.4f}  {candidate['token']}"


@contextmanager
def _lines_to(output: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that appears when all has been written to it."""
    from tasks.predict.embedding_io import replaced

    if output is None:
        with _until_the_reader_leaves():
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    with replaced(output) as partial, partial.open("wb") as file:
        yield file


@contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """`| head` ends the command without a word."""
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer has nowhere to go; Python would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
