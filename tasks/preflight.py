"""Checks before a run starts, so that a mistake is found before hours of training instead of after them.

Every path that a stage reads must be a dependency of that stage in dvc.yaml: otherwise the stage would count as up to
date after the path has changed. Sources, checkpoints, sequence lengths and all rows of the benchmarks are checked too.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from model.benchmarks.custom_task import is_custom, load_custom
from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from model.common.files import digest_of
from model.common.state_files import read_state, write_state
from model.config.pretraining import check_phases
from model.tokenizer.wordpiece import tokenizer_digest
from tasks.cluster.dask_cluster import is_remote, require_dask
from tasks.cluster.launchers import launcher_named
from tasks.corpus.partitions import source_files
from tasks.corpus.sources.source_registry import SOURCE_TYPES
from tasks.dvc.graph import Graph, StageStatus
from tasks.dvc.stage_snapshot import check_declared, missing_inputs
from tasks.finetune.plan import benchmark_files
from tasks.params.finetune import FinetuneParams
from tasks.params.root import EncoderParams, Params, load_params
from tasks.pretrain.start import read_checkpoint, start_of
from tasks.project.project import Project
from tasks.project.stage_versions import check_versions
from tasks.sample import read_sample_record
from tasks.tokens.tokenizer import existing_tokenizer
from tasks.tracking.tracking import STAGES

_ANY_VOCABULARY = 30_522  # lengths do not depend on it


def check(project: Project, params: Params, stages: Sequence[str] = STAGES, may_write: bool = True) -> None:
    """Check what `stages` read.

    Args:
        may_write: remember in build/runs/ which benchmark files have no mistake, so that they are read only once.

    Raises:
        UserError: with one line for each mistake.
    """
    check_versions(project)
    missing = dict.fromkeys(path for stage in stages for path in missing_inputs(project, stage))
    if missing:
        raise UserError(
            "\n".join(
                f"{path} is missing, but dvc.yaml lists it; put the data there, or remove `- {path}` from all deps"
                for path in missing
            )
        )
    mistakes = _Mistakes()
    for stage in stages:
        if stage not in params.model_fields_set:  # DVC would refuse to record the stage
            mistakes.lines[f"params.yaml: the section '{stage}' is missing; `{stage}: {{}}` has the defaults"] = None
    if "corpus" in stages:
        _check_corpus(project, params, mistakes)
    if "tokenizer" in stages and params.tokenizer.existing is not None:
        with mistakes.collected():
            check_declared(project, "tokenizer", project.root / params.tokenizer.existing)
            existing_tokenizer(params.tokenizer, project.root)
    _check_cluster(params, stages, mistakes)
    if "pretrain" in stages:
        for encoder in params.pretrain.encoders:
            with mistakes.collected():
                _positions_of(project, params, encoder)
    if "finetune" in stages:
        _check_finetune(project, params, mistakes, may_write)
    if "leaderboard" in stages:
        with mistakes.collected():
            read_sample_record(project.sample_record)
    if mistakes.lines:
        raise UserError("\n".join(mistakes.lines))


def statuses(project: Project, accept_data: bool = False) -> list[StageStatus]:
    """Return the status of every stage; if one must run, check data/ and everything that the stages read.

    Args:
        accept_data: pin the present content of data/ in data.dvc.

    Raises:
        UserError: see `check` and `Graph.check_data`.
    """
    params = load_params(project.params_path)
    with contextlib.closing(Graph(project)) as graph:
        if accept_data and project.data.is_dir():  # what has a mistake is not pinned
            check(project, params)
        graph.check_data(accept_data)
        found = [graph.status(stage) for stage in graph.stages]
    if any(status.reasons for status in found) and not accept_data:
        check(project, params)
    return found


def _check_cluster(params: Params, stages: Sequence[str], mistakes: _Mistakes) -> None:
    """Check that this machine can submit jobs and use Dask, and that batches can be split among the ranks of nodes."""
    cluster = params.cluster
    remote = [stage for stage in stages if is_remote(stage, params)]
    if remote:
        with mistakes.collected():
            require_dask(f"cluster, for the stage {remote[0]},")
    launcher = launcher_named(cluster.launcher, cluster)
    has_jobs = "pretrain" in stages or (remote and cluster.pool is None)
    if launcher is not None and has_jobs and (problem := launcher.problem()):
        mistakes.lines[f"cluster.launcher: {cluster.launcher}, but {problem}"] = None
    if launcher is None or "pretrain" not in stages:
        return
    for encoder in params.pretrain.encoders:
        if encoder.start is None:
            with mistakes.collected():
                config = encoder.full_shape.build(vocab_size=30_522)
                where = f"pretrain.encoders: {encoder.name}: "
                check_phases(params.pretrain.recipe_of(encoder), params.pretrain_machine, config, where)


class _Mistakes:
    """Collects the messages of UserErrors."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}  # a path may be missing in several stages

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.lines |= dict.fromkeys(str(error).splitlines())


def _check_corpus(project: Project, params: Params, mistakes: _Mistakes) -> None:
    for source in params.corpus.sources:
        if source.path.startswith("s3://"):
            continue
        # The folder around a glob pattern; a path without one stays as it is.
        prefix = re.split(r"[*?[]", source.path, maxsplit=1)[0]
        folder = source.path if prefix == source.path else prefix.rpartition("/")[0]
        with mistakes.collected():
            check_declared(project, "corpus", project.data / folder)
            kind, first = SOURCE_TYPES[source.kind], source_files(source, project.data)[0]
            next(kind.read(source, first, Counter()), None)  # a wrong column or format shows in the first document
    for name in filter(is_custom, params.corpus.contamination.benchmarks):
        with mistakes.collected():
            check_declared(project, "corpus", project.data / name)


def _positions_of(project: Project, params: Params, encoder: EncoderParams) -> int:
    """Return the length of the longest sequences of an encoder, after a check of the checkpoint it continues from."""
    if encoder.start is None:
        return encoder.full_shape.build(_ANY_VOCABULARY).max_position_embeddings
    text = existing_tokenizer(params.tokenizer, project.root)
    start = start_of(encoder, project.data, params.fetch.models, tokenizer_digest(text))
    assert start is not None
    check_declared(project, "pretrain", start.directory)
    where = f"pretrain.encoders: {encoder.name}: "
    check_phases(params.pretrain.recipe_of(encoder), params.pretrain.machine, start.config, where)
    return start.config.max_position_embeddings


def _check_finetune(project: Project, params: Params, mistakes: _Mistakes, may_write: bool) -> None:
    finetune, custom = params.finetune, set()
    for name in finetune.tasks:
        with mistakes.collected():
            check_declared(project, "finetune", project.data / name)
            custom.add(load_custom(name, project.data).row.name)
    with mistakes.collected():
        if len(custom) == len(finetune.tasks):
            finetune = finetune.with_tasks(project.data)
        else:  # the benchmarks are checked all the same
            kept = {name: one for name, one in finetune.benchmarks.items() if name in BENCHMARKS}
            finetune = finetune.model_copy(update={"benchmarks": kept})
        _check_benchmarks(project, finetune, mistakes, may_write)
        _check_lengths(project, params, finetune, mistakes)


def _check_benchmarks(project: Project, finetune: FinetuneParams, mistakes: _Mistakes, may_write: bool) -> None:
    path = project.runs / "preflight.json"
    known, found = set(read_state(path).get("benchmarks", [])), set()
    for name in finetune.benchmarks:
        row = finetune.row(name)
        with mistakes.collected():
            for recipe in finetune.recipes(name):
                HEAD_SPECS[row.head].check_files(row, project.data, recipe)
            files = [file for _, file in benchmark_files(row, project.data)]
            for file in files:
                check_declared(project, "finetune", file)
            stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
            key = digest_of({"row": row.model_dump(mode="json"), "files": stamps})
            if key not in known:
                read_train(row, project.data)
                read_dev(row, project.data)
            found.add(key)
    if may_write and found != known:
        write_state(path, {"benchmarks": sorted(found)})


def _check_lengths(project: Project, params: Params, finetune: FinetuneParams, mistakes: _Mistakes) -> None:
    """Check that every encoder has positions for the longest sequences of fine-tuning."""
    lengths = {name: max(recipe.max_length for recipe in finetune.recipes(name)) for name in finetune.benchmarks}
    positions: dict[str, int] = {}
    for encoder in params.pretrain.encoders:
        with mistakes.collected():
            positions[encoder.name] = _positions_of(project, params, encoder)
    for external in finetune.encoders:
        with mistakes.collected():
            folder, where = project.data / external.path, f"finetune.encoders: {external.name}"
            is_fetched = external.path in params.fetch.models.values()
            remedy = "run `cloze fetch`" if is_fetched else "put the encoder there or correct `path`"
            config, _ = read_checkpoint(folder, where, remedy)
            check_declared(project, "finetune", folder)
            positions[external.name] = config.max_position_embeddings
    for length in sorted(set(lengths.values())):
        names = [name for name, own in lengths.items() if own == length]
        short = {encoder: number for encoder, number in positions.items() if length > number}
        if short:
            mistakes.lines[
                f"finetune: {', '.join(names)}: max_length {length} is more than the {min(short.values())} positions "
                f"of {', '.join(short)}; lower max_length"
            ] = None
