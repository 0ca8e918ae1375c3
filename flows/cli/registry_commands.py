"""Commands of the model registry: `export`, `push`, `promote`, `rollback` and `champion`."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli import completion
from flows.cli.context import ABSOLUTE_PATH, EXIT_FAILED, examples, json_option, project_here
from model.common.errors import UserError
from tasks.project.progress import echo, print_json, show, working
from tasks.project.project import Project
from tasks.project.workspace import run_lock

if TYPE_CHECKING:
    from tasks.registry.gate import Verdict
    from tasks.registry.mlflow_registry import Version
    from tasks.registry.model_card import CardFacts

_INDENT: Any = {"initial_indent": "    ", "subsequent_indent": "    "}


_WHAT = click.argument("what", metavar="ENCODER|TASK|champion|best", shell_complete=completion.models)
_ENCODER = click.option(
    "--encoder",
    shell_complete=completion.encoders,
    help="For a TASK: use this encoder's model (default: the best one on dev).",
)
_TASK = click.option(
    "--task", shell_complete=completion.tasks, help="For champion or best: use its fine-tuned model for this task."
)


@click.command(epilog=examples("export best out", "export champion out --task rte --onnx"))
@_WHAT
@click.argument("directory", type=ABSOLUTE_PATH)
@_ENCODER
@_TASK
@click.option("--onnx", is_flag=True, help="Also write model.onnx, and compare its outputs with the model's.")
@click.option("--fill-mask", is_flag=True, help="For an encoder: also write fill_mask.onnx, with its masked-LM head.")
def export(what: str, directory: Path, encoder: str | None, task: str | None, onnx: bool, fill_mask: bool) -> None:
    """Export a model to DIRECTORY in the `transformers` layout.

    Exports an encoder, the fine-tuned model of a task, the champion, or the best champion ever, with a model card.
    """
    from tasks.registry.artifacts import export_folder
    from tasks.registry.model_card import render

    with _model(project_here(), what, encoder, task) as (source, label, facts_of):
        card = None if facts_of is None else lambda folder: render(facts_of(folder))
        differences = export_folder(source, directory, card, onnx, fill_mask)
    echo(f"exported {label} to {directory}")
    for file_name, difference in differences.items():
        echo(f"{file_name}: outputs differ from the model's by at most {difference:.1e} (tolerance 1e-4)")


@contextlib.contextmanager
def _model(
    project: Project, what: str, encoder: str | None, task: str | None
) -> Iterator[tuple[Path, str, Callable[[Path], CardFacts] | None]]:
    """Find a model: its directory, its name in messages, and what gathers the facts of its card for a copy of the
    directory (None for a registered model, which has a card)."""
    from tasks.dvc.integrity import check_recorded
    from tasks.registry.artifacts import best_model, published_models
    from tasks.registry.mlflow_registry import BEST, CHAMPION, Registry, encoder_folder
    from tasks.registry.model_card import gather

    is_registered = what in (CHAMPION, BEST)
    if task is not None and not is_registered:
        raise UserError("--task applies to champion and best; name the task instead of the encoder, with --encoder")
    if is_registered:
        registry = Registry(project)
        version = registry.by_alias(what)
        if version is None:
            raise UserError(f"no version has the alias '{what}' yet; run `cloze promote` to register one")
        with tempfile.TemporaryDirectory() as temporary:
            folder = registry.fetch(version, Path(temporary), task or "")
            yield folder, f"{what} {version}{f', {task}' if task else ''}", None
        return
    benchmark = ""
    if encoder is not None or what in {one.benchmark for one in published_models(project.build / "finetune")}:
        model = best_model(project.build / "finetune", what, encoder)
        name, benchmark = model.encoder, model.benchmark
        check_recorded(project, "build/finetune", f"{name}/{benchmark}/model")
        source, label = model.directory, str(model)
    else:
        name, source, label = what, encoder_folder(project, what), f"encoder {what}"
        check_recorded(project, "build/pretrain", what)
    yield source, label, lambda folder: gather(project, name, folder, benchmark)


@click.command(epilog=examples("push best my-name/my-encoder --dry-run", "push sst2 my-name/sentiment --private"))
@_WHAT
@click.argument("repository", metavar="REPOSITORY")
@_ENCODER
@_TASK
@click.option("--private", is_flag=True, help="Create a private repository; an existing one stays as it is.")
@click.option("--dry-run", is_flag=True, help="List the files, and upload nothing.")
def push(what: str, repository: str, encoder: str | None, task: str | None, private: bool, dry_run: bool) -> None:
    """Publish a model with its card on the Hugging Face hub.

    Uploads an encoder, the fine-tuned model of a task, the champion, or the best champion ever to REPOSITORY, which is
    created if it does not exist. Needs HF_TOKEN or `hf auth login`.
    """
    from tasks.registry import hub
    from tasks.registry.artifacts import export_folder
    from tasks.registry.model_card import faults, render

    hub.check_repository(repository)
    token = "" if dry_run else hub.require_token()

    def card(folder: Path) -> str:
        assert facts_of is not None
        facts = facts_of(folder)
        if missing := faults(facts):
            raise UserError(f"the model card of {label} is incomplete: {'; '.join(missing)}")
        return render(facts, repository)

    with (
        _model(project_here(), what, encoder, task) as (source, label, facts_of),
        tempfile.TemporaryDirectory() as temporary,
    ):
        folder = Path(temporary) / "model"
        export_folder(source, folder, card if facts_of else None)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in files if dry_run else []:
            show(f"{path.relative_to(folder)}  {path.stat().st_size:,} bytes")
        if dry_run:
            echo(f"would upload {label} to {repository}")
            return
        with working(f"uploading {label} to {repository}"):
            url = hub.upload(folder, repository, token, private, f"{label}, by cloze push")
    show(url)


@click.command(epilog=examples("promote --dry-run", 'promote pretrained --reason "trained on more books"'))
@click.argument("what", metavar="[ENCODER|RUN|ENCODER@RUN|VERSION]", default="", shell_complete=completion.encoders)
@click.option("--reason", default="", help="Reason to record in the history, next to the gate's.")
@click.option("--force", is_flag=True, help="Promote even if the gate refuses; needs --reason.")
@click.option(
    "--reset-best",
    is_flag=True,
    help="Promote like --force, and measure the margin from this encoder from now on; needs --reason.",
)
@click.option("--dry-run", is_flag=True, help="Register and evaluate the gate, but do not promote.")
@json_option
def promote(what: str, reason: str, force: bool, reset_best: bool, dry_run: bool, as_json: bool) -> None:
    """Register an encoder, and promote it if it passes the gate.

    The default is the pre-trained encoder with the best average in the last run in this directory (not in a workspace);
    an encoder from scratch is promoted only if it is named. The promoted encoder is the new champion.
    """
    project = project_here()
    with run_lock(project, "cloze promote", wait_seconds=30.0):  # an experiment may just prepare its workspace
        with working("registering the encoder and its fine-tuned models in MLflow"):
            from tasks.registry import champion

            version = _find_version(project, what)
        with working("comparing with the best champion"):
            done = None if dry_run else champion.promote(project, version, reason, force, reset_best)
            verdict = champion.assess(project, version) if done is None else done.verdict
    _print_verdict(verdict, as_json)
    if done is None:
        sys.exit(0 if verdict.promoted else EXIT_FAILED)
    say = echo if as_json else show
    if done.event is None:
        now = champion.current(project)
        if now is None or now.number == version.number:
            say(f"{version} is already the champion")
        else:
            how = "pass --force and --reason to make it the champion nevertheless, such as for its model card"
            say(f"{version} has the weights of the champion, {now}; {how}")
        return
    if done.promoted:
        say(f"{version} is now the champion{' (forced)' if done.event.act == 'forced' else ''}")
    else:
        now = champion.current(project)
        say(f"{version}: refused; {f'the champion stays {now}' if now else 'there is still no champion'}")
    sys.exit(0 if done.promoted else EXIT_FAILED)


def _find_version(project: Project, what: str) -> Version:
    """Find a registered version by its number, or register a recorded run, an encoder, or the best encoder."""
    from tasks.leaderboard import history
    from tasks.registry.mlflow_registry import Registry, encoder_folder, register
    from tasks.registry.model_card import current_record

    if what.isdecimal():
        found = [version for version in Registry(project).versions() if version.number == int(what)]
        if found:
            return found[0]  # otherwise, these may be the first characters of a run's id
    if not what:
        return register(project)
    encoder, _, run = what.rpartition("@")  # ENCODER@RUN, as on the board
    try:
        encoder_folder(project, what)
    except UserError as no_encoder:
        try:
            record = history.find_record(history.read_records(project.leaderboards), run)
        except UserError as no_run:
            no_version = f"no version {what} is registered; " if what.isdecimal() else ""
            raise UserError(f"{no_version}{no_encoder}; {no_run}") from None
        folder = (project.home / record.workspace).resolve()
        # The results of a DVC experiment are in the project after `dvc exp apply`.
        place = dataclasses.replace(project, root=folder if folder.is_dir() else project.root)
        current = current_record(place)
        if current is None or current.digest != record.digest:
            for version in Registry(project).versions():
                if version.tags.get("cloze.run") == record.pipeline and encoder in ("", version.encoder):
                    return version
            where, how = "the project's directory", "`cloze run` with its params.yaml"
            if record.workspace:
                where, how = record.workspace, "`cloze run --params` with its file"
            raise UserError(
                f"run {record.title}: its models are no longer in {where}; repeat it ({how}), which takes results from"
                " the cache"
            ) from None
        return register(place, encoder)
    return register(project, what)


def _print_verdict(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        print_json(verdict.record())
        return
    print(f"{verdict.challenger} versus {verdict.best or 'no champion (none is registered yet)'}")
    for rule in verdict.rules:
        print(f"  {'pass' if rule.passed else 'FAIL'}  {rule.name}: {rule.reason}")
    for line in verdict.summary:
        print(line)


@click.command()
@click.option("--reason", required=True, help="Reason to record in the history.")
def rollback(reason: str) -> None:
    """Make the previous champion the champion again."""
    from tasks.registry import champion

    project = project_here()
    event = champion.rollback(project, reason)
    known = {one.number: str(one) for one in champion.versions(project)}
    show(f"{known[event.version]} is the champion again; it was {known.get(event.before or 0, 'a deleted version')}")


@click.command()
@json_option
def champion(as_json: bool) -> None:
    """Show the champion and the history of promotions."""
    from tasks.registry import champion

    project = project_here()
    version, best, events = champion.current(project), champion.best(project), champion.history(project)
    if as_json:
        present = version and {"version": version.number, "encoder": version.encoder, **version.tags}
        told = {"champion": present, "best": best and best.number}
        print_json(told | {"history": [dataclasses.asdict(event) for event in events]})
        return
    print(f"champion  {version or 'none yet; run `cloze promote` to register one'}")
    if best is not None:
        print(f"best      {best}")
    known = {one.number: str(one) for one in champion.versions(project)}
    for event in events:
        after = "" if event.before is None else f" (was version {event.before})"
        print(f"{event.when}  {event.act:<11}  {known.get(event.version, f'version {event.version}')}{after}")
        print(textwrap.fill(event.reason, shutil.get_terminal_size().columns, **_INDENT))
