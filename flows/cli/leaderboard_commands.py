"""Commands that score and compare: `leaderboard` (with GLUE submissions), `board`, `compare` and `score`."""

from __future__ import annotations

import collections
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli import completion
from flows.cli.context import (
    ABSOLUTE_PATH,
    EXIT_USER,
    PATH,
    examples,
    hardware_options,
    json_option,
    project_for_inference,
    project_here,
)
from flows.cli.predict_commands import load_model
from flows.cli.run_commands import run_stage
from model.common.errors import UserError
from tasks.project.progress import console, echo, print_json, show, warn
from tasks.project.project import Project

if TYPE_CHECKING:
    from model.benchmarks.table import Benchmark
    from model.config.hardware import HardwareOptions
    from tasks.leaderboard.compare_two import Side
    from tasks.predict.submission import Sheet
    from tasks.stats.compare import Comparison


@click.command(epilog=examples("leaderboard", "leaderboard --submission glue.zip"))
@click.option("--allow-missing", is_flag=True, help="Publish a leaderboard even if some jobs failed.")
@click.option("--submission", type=ABSOLUTE_PATH, help="Only write this zip file for the GLUE server.")
@click.option("--check-submission", "checked", type=PATH, help="Only check this zip file for the GLUE server.")
@click.option(
    "--encoder",
    shell_complete=completion.encoders,
    help="With --submission: use this encoder's models (default: the best encoder's).",
)
@click.option("--partial", is_flag=True, help="With either: accept missing test sets and other numbers of rows.")
@click.option(
    "--wnli",
    type=click.Choice(["majority", "model"]),
    default="majority",
    help="With --submission: how to answer WNLI; GLUE and the BERT paper advise the majority label.",
)
@hardware_options
def leaderboard(
    allow_missing: bool,
    submission: Path | None,
    checked: Path | None,
    encoder: str | None,
    partial: bool,
    wnli: str,
    machine: HardwareOptions,
) -> None:
    """Rank the encoders (stage), or prepare a GLUE submission.

    --submission writes, and --check-submission checks, a zip file for the GLUE server.
    """
    from tasks.predict.submission import check_submission, sheet_text, write_submission
    from tasks.registry.artifacts import best_model

    if checked is not None:
        faults = check_submission(checked, partial)
        for fault in faults:
            show(fault)
        show(f"{checked}: {f'{len(faults)} problems' if faults else 'ready for the GLUE server'}")
        sys.exit(EXIT_USER if faults else 0)
    if submission is None:
        if encoder is not None or partial:
            raise UserError("--encoder and --partial need --submission")
        run_stage("leaderboard", allow_missing)
        return
    project = project_for_inference()
    encoder = encoder or _best_glue_encoder(project)
    echo(f"submission: models of encoder '{encoder}'")
    todo = list(_read_test_sets(project, partial))  # report invalid files before the first prediction
    majority = {"WNLI"} if wnli == "majority" else set()
    models = {
        sheet.benchmark: best_model(project.build / "finetune", sheet.benchmark, encoder)
        for sheet, _, _ in todo
        if sheet.name not in majority
    }
    texts: dict[str, str] = {}
    for sheet, row, rows in todo:
        if sheet.name in majority:
            answers: list[Any] = [_majority_label(row, project.data)] * len(rows)
            source = "the majority label of the training set (use --wnli model to predict)"
        else:
            finetuned = load_model(models[sheet.benchmark].directory, sheet.benchmark, machine)
            answers = [answer["prediction"] for answer in finetuned.predict(rows)]
            source = str(models[sheet.benchmark])
        texts[sheet.name] = sheet_text(sheet, answers)
        echo(f"  {sheet.name:<8} {len(rows):>7,} rows answered by {source}")
    write_submission(submission, texts)
    faults = check_submission(submission, partial)
    assert not faults, faults
    show(f"{submission}: {len(texts)} files{'; partial: the GLUE server will refuse it' if partial else ''}")


def _read_test_sets(project: Project, partial: bool) -> Iterator[tuple[Sheet, Benchmark, Sequence[Any]]]:
    """Read GLUE's test sets and check their rows; with `partial`, skip missing ones."""
    from model.benchmarks.sources import split_sources
    from model.benchmarks.splits import read_test
    from model.benchmarks.table import find
    from tasks.predict.submission import SHEETS, check_rows

    for sheet in SHEETS:
        row = find(sheet.benchmark)
        source = split_sources(row, project.data, "test")[sheet.part]
        if not source.exists and partial:
            warn(f"  {sheet.name:<8} skipped: no data/{source.name}")
            continue
        if not source.exists:
            raise UserError(
                f"data/{source.name}: no such file; the GLUE server requires answers to it; fetch it with `cloze fetch`"
            )
        only = row.model_copy(update={"test": {sheet.part: row.test[sheet.part]}})
        examples = read_test(only, project.data)[sheet.part].examples
        check_rows(sheet, Path("data") / source.name, [example.id for example in examples], partial)
        yield sheet, row, examples


def _best_glue_encoder(project: Project) -> str:
    """Find the encoder with models for most of GLUE's benchmarks and, of those, with the highest mean score."""
    from tasks.predict.submission import SHEETS
    from tasks.registry.artifacts import published_models

    benchmarks = {sheet.benchmark for sheet in SHEETS}
    scores: dict[str, list[float]] = collections.defaultdict(list)
    for one in published_models(project.build / "finetune"):
        if one.benchmark in benchmarks:
            scores[one.encoder].append(one.rank.mean)
    if not scores:
        raise UserError(f"{project.build / 'finetune'}: no model for a GLUE benchmark; run `cloze run` first")
    return max(scores, key=lambda name: (len(scores[name]), sum(scores[name])))


def _majority_label(row: Benchmark, data_dir: Path) -> str:
    """Return the most frequent training label; ties go to the first."""
    from model.benchmarks.splits import read_train

    counts = collections.Counter(example.label for example in read_train(row, data_dir).examples)
    return row.labels[max(range(len(row.labels)), key=counts.__getitem__)]


@click.command(epilog=examples("board", "board --reference pretrained"))
@click.option(
    "--reference",
    default="",
    shell_complete=completion.systems,
    help="System that the others are compared with (default: the best one).",
)
@click.option(
    "--forget",
    "forgotten",
    multiple=True,
    metavar="RUN",
    shell_complete=completion.runs,
    help="Delete the record of a run, given by the first characters of its id.",
)
@click.option("--from-mlflow", is_flag=True, help="Also import runs that other machines recorded in MLflow.")
@json_option
def board(reference: str, forgotten: tuple[str, ...], from_mlflow: bool, as_json: bool) -> None:
    """Show the leaderboard of all recorded runs.

    Runs in workspaces are included.
    """
    from tasks.leaderboard import history
    from tasks.leaderboard.board_files import write_board
    from tasks.leaderboard.terminal import print_board
    from tasks.params.root import load_params

    project = project_here()
    home = project.leaderboards
    reference = reference or load_params(project.params_path).leaderboard.reference
    if forgotten:
        records = history.read_records(home)
        history.forget(home, [history.find_record(records, name).digest for name in forgotten])
    if from_mlflow:
        echo(f"imported {history.take_remote_records(project.tracking_uri, home)} new runs from MLflow")
    combined, page = write_board(home, reference), home / "board.html"
    if as_json:
        print_json({**combined.content(), "page": str(page)})
    else:
        print_board(combined)
        show(f"page  {os.path.relpath(page)}")


@click.command(epilog=examples("compare pretrained scratch", "compare pretrained@3f2a9c wide@longer rte"))
@click.argument("encoder_a", metavar="A[@RUN]", shell_complete=completion.systems)
@click.argument("encoder_b", metavar="B[@RUN]", shell_complete=completion.systems)
@click.argument("tasks", nargs=-1, shell_complete=completion.tasks)
@json_option
def compare(encoder_a: str, encoder_b: str, tasks: tuple[str, ...], as_json: bool) -> None:
    """Show how two encoders differ, and test which is better on which benchmark.

    A and B are encoders of this project's last run, or of any run that `cloze board` lists: pretrained@3f2a9c. First
    the parameters that differ are printed. The tests compare dev rows and seeds, on TASKS or on all benchmarks.
    """
    from tasks.leaderboard.compare_two import compare_sides, find_side
    from tasks.leaderboard.settings import difference

    project = project_here()
    finetune_dir, home = project.build / "finetune", project.leaderboards
    first, second = (find_side(finetune_dir, home, name) for name in (encoder_a, encoder_b))
    if not as_json:
        _print_parameters(first, second)
    found, reasons = compare_sides(first, second, list(tasks))
    if as_json:
        sides = {letter: {"name": one.name, "origin": one.origin} for letter, one in (("a", first), ("b", second))}
        differs = difference(first.settings, second.settings) if first.settings and second.settings else None
        benchmarks = [dataclasses.asdict(one) for one in found]
        print_json({**sides, "parameters": differs, "benchmarks": benchmarks, "not_compared": reasons})
    else:
        _print_comparison(found, reasons)


def _print_parameters(first: Side, second: Side) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from tasks.leaderboard.settings import difference

    out = console()
    for letter, side in (("A", first), ("B", second)):
        out.print(f"{letter}  {side.name} ({side.origin})", highlight=False, markup=False)
    unknown = [side.name for side in (first, second) if not side.settings]
    if unknown:
        text = f"The parameters of {' and '.join(dict.fromkeys(unknown))} are not recorded; `cloze run` records them."
        out.print(text, highlight=False, markup=False)
        return
    differences = difference(first.settings, second.settings)
    if not differences:
        out.print("The parameters are the same.")
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("differs in", "A", "B"):
        table.add_column(name, overflow="fold")
    for key, values in differences.items():
        table.add_row(*map(Text, (key, *values)))
    out.print(table)


def _print_comparison(found: list[Comparison], reasons: Mapping[str, str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tasks.leaderboard import formatting
    from tasks.stats.compare import LEVEL

    out = console()
    covered = any(one.pretraining for one in found)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("benchmark", overflow="fold", max_width=18)
    for name in ("A", "B", "A − B", "95 %, rows", "95 %, " + ("pre-train." if covered else "seeds"), "p (Holm)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("better", no_wrap=True)
    for one in found:
        intervals = [
            formatting.interval(test.low, test.high) if test else missing
            for test, missing in ((one.rows, "–"), ((one.pretraining, "–") if covered else (one.seeds, "one seed")))
        ]
        table.add_row(
            f"{one.benchmark} {formatting.metric_title(one.metric)}",
            *map(formatting.score, (one.first, one.second)),
            formatting.signed(one.difference),
            *intervals,
            formatting.p_value(one.p_corrected),
            _SIDES.get(one.better or "", ""),
        )
    if found:
        out.print(table)
    lines = [f"not compared: {task} ({reason})" for task, reason in reasons.items()]
    ahead = ", ".join(f"{name} on {sum(one.better == side for one in found)}" for side, name in _SIDES.items())
    test = f"over rows and seeds, Holm-corrected for {len(found)} benchmarks"
    lines += [f"significantly better at {LEVEL:.0%} ({test}): {ahead}"] if found else []
    lines += _unknown(found)
    for line in lines:
        out.print(line, highlight=False, markup=False)


_SIDES = {"first": "A", "second": "B"}


def _unknown(found: Sequence[Comparison]) -> list[str]:
    """List what the comparisons do not cover."""

    def where(tasks: Sequence[str]) -> str:
        return "all benchmarks" if len(tasks) == len(found) else ", ".join(tasks)

    lines = []
    if single := [one.benchmark for one in found if one.seeds is None]:
        lines.append(f"one seed on {where(single)}: the variation between training runs is unknown")
    if missing := [one.benchmark for one in found if one.rows is None]:
        lines.append(f"no predictions on {where(missing)} on this machine: other dev rows are not covered")
    if not all(one.pretraining for one in found):
        lines.append("only one pre-training of an encoder: no interval covers the pre-training seed")
    return lines


@click.command(epilog=examples("score squad1 dev-v1.1.json predictions.json"))
@click.argument("task", shell_complete=completion.tasks)
@click.argument("gold", type=PATH)
@click.argument("predictions", type=PATH)
@click.option(
    "--na-prob", type=PATH, help="SQuAD v2.0: JSON file of no-answer probabilities or log-odds by question id."
)
@click.option(
    "--na-threshold",
    type=float,
    help="SQuAD v2.0: treat questions above this value as unanswered (default: 1.0, as in the official script).",
)
def score(task: str, gold: Path, predictions: Path, na_prob: Path | None, na_threshold: float | None) -> None:
    """Score a file of predictions by the official rules of TASK.

    Compares PREDICTIONS with the file GOLD and prints the scores as JSON.
    """
    from model.benchmarks.scoring.score_files import score_files

    report = score_files(_benchmark(task), gold, predictions, na_prob, na_threshold)
    if report["num_missing"]:
        warn(
            f"cloze: {predictions}: no prediction for {report['num_missing']} of {report['num_rows']} questions; "
            "each counts as 0, as in the official SQuAD script"
        )
    print_json(report)


def _benchmark(task: str) -> Benchmark:
    """Find a benchmark by its name, GLUE's diagnostic set (ax), or a custom task by its YAML file.

    A custom task's path is relative to the current directory or to the project's data directory.
    """
    from model.benchmarks.custom_task import is_custom, row_of
    from model.benchmarks.scoring.score_files import diagnostic_row
    from model.benchmarks.table import find

    if task == "ax":
        return diagnostic_row()
    if not is_custom(task):
        return find(task)
    data = Project.find().data.resolve()
    path = Path(task).resolve()
    return row_of(path.relative_to(data).as_posix() if path.is_relative_to(data) and path.exists() else task, data)
