"""Commands that fill data/: `sample` and `fetch`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from flows.cli.context import ABSOLUTE_PATH, examples, project_here
from flows.cli.run_commands import run_flow
from model.common.errors import UserError
from model.common.files import digest_of_folder
from model.common.state_files import write_state
from tasks.project import signals
from tasks.project.progress import bars, echo, show, warn, working
from tasks.project.project import Project
from tasks.project.workspace import publish, run_lock, staging
from tasks.project.yaml_files import read_yaml


@click.command()
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), help="Seed of the generator; another seed gives other texts and rows."
)
@click.option("--small", is_flag=True, help="Generate a smaller dataset, for tests.")
def sample(seed: int | None, small: bool) -> None:
    """Generate a small synthetic dataset in data/."""
    from tasks.sample import SMALL, SampleSettings, make_sample, read_sample_record

    project = project_here()
    start = time.monotonic()
    with run_lock(project, "cloze sample"):
        mark = project.sample_record
        exists = any(path.is_file() for path in project.data.rglob("*"))
        if exists and digest_of_folder(project.data) != read_sample_record(mark).get("digest"):
            raise UserError(
                "data/ contains files that `cloze sample` did not create or that have changed since; "
                "move data/ away first"
            )
        settings = SampleSettings(**SMALL) if small else SampleSettings()
        if seed is not None:
            settings = settings.model_copy(update={"seed": seed})
        with working("generating the dataset"), staging(project, "sample") as folder:
            sizes = make_sample(folder, settings)
            digest = digest_of_folder(folder)
            publish(folder, project.data)
        write_state(mark, {"digest": digest, "settings": settings.model_dump(), "files": sizes})
    megabytes, seconds = sum(sizes.values()) / 1e6, time.monotonic() - start
    echo(f"data/: synthetic dataset of {len(sizes)} files, {megabytes:.1f} MB, generated in {seconds:.1f} s")


@click.command(epilog=examples("fetch", "fetch --dry-run", "fetch wikipedia --refresh"))
@click.argument("names", nargs=-1)
@click.option(
    "--params", "params_path", type=ABSOLUTE_PATH, help="Read the sources from this file instead of params.yaml."
)
@click.option("--refresh", is_flag=True, help="Check S3 prefixes and local directories for new files.")
@click.option("--dry-run", is_flag=True, help="List the sources and what pins them; contact no server.")
@click.option("--stdin", "target", metavar="FILE", help="Write standard input to data/FILE.")
@click.option("--sha256", default="", help="With --stdin: expected SHA-256 hash of the file.")
def fetch(
    names: tuple[str, ...], params_path: Path | None, refresh: bool, dry_run: bool, target: str | None, sha256: str
) -> None:
    """Download sources into data/.

    NAMES selects some of fetch.sources in params.yaml; the default is all of them.
    """
    from tasks.fetch import fetch_sources
    from tasks.params.root import load_params

    if target is not None and (names or params_path or refresh or dry_run):
        raise UserError("--stdin writes one file; it can be combined only with --sha256")
    if sha256 and target is None:
        raise UserError("--sha256 needs --stdin; the hash of a source is set in params.yaml")
    project = project_here()
    if target is not None:
        if sys.stdin.isatty():
            raise UserError(
                f"--stdin {target}: standard input is a terminal; pipe the file in, "
                f"as in `bzcat dump.xml.bz2 | cloze fetch --stdin {target}`"
            )
        with run_lock(project, "cloze fetch"), signals.handle_signals(), bars() as add_bar:
            received = fetch_sources.receive(project, sys.stdin.buffer, target, sha256, add_bar(target).update)
        echo(f"data/{target}: {received['bytes'] / 1e6:,.1f} MB")
        _say_next_step(project, [target])
        return
    params_path = params_path or project.params_path
    sources = fetch_sources.chosen(load_params(params_path).fetch, names)
    if dry_run:
        for source in sources:
            show(fetch_sources.describe(source))
        return
    with run_lock(project, "cloze fetch"), signals.handle_signals():
        if not fetch_sources.stale(fetch_sources.open_record(project), sources, refresh):
            echo(f"Everything is up to date: data/ contains all {len(sources)} sources, unchanged")
            return
        run_flow(project, "flows.fetch_flow:fetch", params_path=str(params_path), names=list(names), refresh=refresh)
    _say_next_step(project, [source.to for source in sources])


def _say_next_step(project: Project, targets: Sequence[str]) -> None:
    stages = read_yaml(project.root / "dvc.yaml").get("stages", {}).values()
    watched = [Path(dependency) for stage in stages for dependency in stage.get("deps", [])]
    for target in targets:
        path = Path("data") / target
        if not any(path.is_relative_to(dependency) or dependency.is_relative_to(path) for dependency in watched):
            warn(f"{path}: no stage in dvc.yaml depends on it; add it to the deps of the stage that reads it")
    echo("data/ has changed; run `cloze run --accept-data` to pin the new version and use it")
