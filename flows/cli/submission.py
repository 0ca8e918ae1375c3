"""The zip for GLUE's server: test sets answered by what a run has published, and zips checked."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.benchmarks.readers.readers import read_test, read_train
from model.benchmarks.sources import test_sources
from model.benchmarks.table import Benchmark, find
from model.common.errors import UserError
from model.config.hardware import Machine
from tasks.dvc.manifest import check_folder
from tasks.predict.submission import SHEETS, Sheet, check_rows, check_submission, sheet_text, write_submission
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.registry.artifacts import best_model, published_models

if TYPE_CHECKING:
    from model.inference.predictor import Finetuned


def submit_here(
    project: Project, path: Path, *, encoder: str | None, partial: bool, wnli: str, machine: Machine
) -> None:
    """`cloze leaderboard --submission FILE.zip`: GLUE's test sets answered by the published models of one encoder."""
    encoder = encoder or _encoder_of_glue(project)
    say(f"submission: the models of encoder '{encoder}'")
    todo = list(_todo(project, partial))  # all that can be wrong with files comes before the first answer
    chosen = {
        sheet.benchmark: best_model(project.build / "finetune", sheet.benchmark, encoder)
        for sheet, _, _ in todo
        if not _is_majority(sheet, wnli)
    }
    texts: dict[str, str] = {}
    for sheet, row, examples in todo:
        if _is_majority(sheet, wnli):
            answers: list[Any] = [_majority(row, project.data)] * len(examples)
            by = "the training file's majority (the model's: --wnli model)"
        else:
            finetuned = _load_model(chosen[sheet.benchmark].directory, sheet.benchmark, machine)
            answers = [one["prediction"] for one in _answers(finetuned, examples)]
            by = f"{chosen[sheet.benchmark]}"
        texts[sheet.name] = sheet_text(sheet, answers)
        say(f"  {sheet.name:<8} {len(examples):>7,} rows by {by}")
    write_submission(path, texts)
    faults = check_submission(path, partial)
    assert not faults, faults
    say(f"{path}: {len(texts)} files{'' if not partial else '; partial: not for the server'}")


def check_here(path: Path, partial: bool) -> int:
    """`cloze leaderboard --check-submission FILE.zip`: the number of faults, each told in a line."""
    faults = check_submission(path, partial)
    for fault in faults:
        say(fault)
    say(f"{path}: {len(faults)} faults" if faults else f"{path}: as GLUE's server wants it")
    return len(faults)


def _todo(project: Project, partial: bool) -> Iterator[tuple[Sheet, Benchmark, Sequence[Any]]]:
    """The sheets whose test rows are there and as the server has them."""
    for sheet in SHEETS:
        row = find(sheet.benchmark)
        source = test_sources(row, project.data)[sheet.part]
        if not source.exists and partial:
            say(f"  {sheet.name:<8} left out: no data/{source.name}")
            continue
        if not source.exists:
            raise UserError(
                f"data/{source.name}: no such file; GLUE's server wants answers to it; fetch it (`cloze fetch`)"
            )
        only = row.model_copy(update={"test": {sheet.part: row.test[sheet.part]}})
        examples = read_test(only, project.data)[sheet.part].examples
        check_rows(sheet, Path("data") / source.name, [example.id for example in examples], partial)
        yield sheet, row, examples


def _is_majority(sheet: Sheet, wnli: str) -> bool:
    return sheet.name == "WNLI" and wnli == "majority"


def _load_model(directory: Path, task: str, machine: Machine) -> Finetuned:
    from model.inference.predictor import load_finetuned

    check_folder(directory)
    return load_finetuned(directory, task, machine=machine)


def _answers(finetuned: Finetuned, examples: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return finetuned.stream((f"row {number}", example) for number, example in enumerate(examples))


def _encoder_of_glue(project: Project) -> str:
    """The encoder that is best on the mean of the headlines of GLUE's benchmarks, among those with most of them."""
    asked = {sheet.benchmark for sheet in SHEETS}
    scores: dict[str, list[float]] = {}
    for one in published_models(project.build / "finetune"):
        if one.benchmark in asked:
            scores.setdefault(one.encoder, []).append(one.value)
    if not scores:
        raise UserError(f"{project.build / 'finetune'}: no model of a GLUE benchmark; run `cloze run` first")
    return max(scores, key=lambda name: (len(scores[name]), sum(scores[name])))


def _majority(row: Benchmark, data_dir: Path) -> str:
    """The most frequent training label; the first of equals."""
    counts = collections.Counter(example.label for example in read_train(row, data_dir).examples)
    return max(enumerate(row.labels), key=lambda pair: (counts[pair[0]], -pair[0]))[1]
