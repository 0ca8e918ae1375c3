"""The stage graph of dvc.yaml: which stages are stale and why, restoring outputs, and recording finished stages.

DVC decides whether a stage is up to date; `cloze run` and `dvc repro` share dvc.lock. Stages do not use this module
while `dvc repro` runs them, because DVC then holds its lock.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from model.common.errors import UserError
from model.common.files import named_if_full, read_json
from model.common.state_files import set_aside
from tasks.dvc.integrity import (
    LOCK,
    PIN,
    check_recorded,
    equals_lock,
    inputs,
    is_cached,
    locked_params,
    outputs,
    recorded_files,
    refuse_damaged,
)
from tasks.dvc.stage_snapshot import MAY_BE_EMPTY
from tasks.params.differences import UNSET, differences
from tasks.project.project import Project
from tasks.project.stage_versions import VERSIONS, check_versions, code_version
from tasks.project.workspace import dvc_config
from tasks.project.yaml_files import read_yaml

if TYPE_CHECKING:
    from dvc.repo import Repo

_OUTS = "outs: "  # prefix of reasons that concern outputs
_FIRST = "it has not run yet"
_PARAMS = "params.yaml"
_TRANSFERS = logging.getLogger("dvc_data.hashfile.transfer")


class StageStatus(NamedTuple):
    """A stage of dvc.yaml and the reasons why it must run; without reasons it is up to date."""

    name: str
    reasons: tuple[str, ...]

    @property
    def is_first(self) -> bool:
        """True if the stage has never run here."""
        return self.reasons == (_FIRST,)


def _check_files(project: Project) -> None:
    """Check the files that DVC reads: it takes an empty one as up to date, and does not name every damaged one.

    Raises:
        UserError: a file is not what it has to be; the message names it.
    """
    dvc_config(project.root)
    kept = project.root / ".dvc" / "tmp" / "rwlock"  # matters only while DVC runs
    if kept.is_file() and kept.stat().st_size:
        try:
            read_json(kept)
        except ValueError:
            set_aside(kept, "is not JSON")
    for name, has_content in (("dvc.yaml", _has_stages), (PIN, _has_output), (LOCK, _is_lock)):
        path = project.root / name
        if not path.exists() and name != "dvc.yaml":
            continue
        remedy = f"restore it with `git checkout {name}`"
        if name == LOCK:
            remedy += ", or delete it: the stages run again, and jobs with a result do not"
        try:
            is_whole = has_content(read_yaml(path))
        except UserError as error:
            raise UserError(f"{error}; {remedy}") from None
        if not is_whole:
            raise UserError(f"{name}: incomplete; {remedy}")


def _has_stages(content: Mapping[str, Any]) -> bool:
    stages = content.get("stages")
    return isinstance(stages, dict) and bool(stages) and all(isinstance(one, dict) for one in stages.values())


def _is_lock(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("stages"), dict)


def _has_output(content: Mapping[str, Any]) -> bool:
    outs = content.get("outs")
    return isinstance(outs, list) and bool(outs) and all(isinstance(one, dict) and "path" in one for one in outs)


class Graph:
    """The stages of dvc.yaml and their status.

    Args:
        params_path: compare with these parameters, which another directory would run with, instead of params.yaml.
        may_write: False leaves every file of the project as it is.
    """

    def __init__(self, project: Project, params_path: Path | None = None, may_write: bool = True) -> None:
        self.project = project
        self._other_params, self._may_write = params_path, may_write
        check_versions(project)
        _check_files(project)
        if may_write and project.data.is_dir():
            for path in MAY_BE_EMPTY:
                (project.root / path).mkdir(exist_ok=True)
        from dvc.exceptions import NotDvcRepoError

        logging.getLogger("dvc").setLevel(logging.ERROR)  # importing DVC sets another level
        logging.getLogger("dvc.progress").setLevel(logging.CRITICAL)  # no bars, which would stay between our lines
        try:
            self._repo = self._opened(str(project.root))
        except NotDvcRepoError:
            raise UserError(f"{project.root}: not a DVC repository; run `dvc init` in it") from None
        try:
            self._status: dict[str, Any] = dict(self._repo.status())
        except Exception as error:  # DVC's errors have no common base class
            raise UserError(f"dvc status: {' '.join(str(error).split())}") from error

    def _opened(self, root: str) -> Repo:
        """Open the DVC repository. If the project is read-only, DVC's locks and caches are in a temporary directory."""
        from dvc.repo import Repo

        writable = all(os.access(place, os.W_OK) for place in (self.project.root / ".dvc", self.project.home))
        if self._may_write or writable:
            return Repo(root)
        temporary = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, temporary)

        class Elsewhere(Repo):
            tmp_dir = site_cache_dir = temporary

            def _ignore(self) -> None:
                pass

        return Elsewhere(root)

    @property
    def stages(self) -> list[str]:
        """Stage names in topological order."""
        import networkx

        order = networkx.topological_sort(self._repo.index.graph.reverse(copy=True))
        return [stage.name for stage in order if getattr(stage, "name", None)]

    def inputs_of(self, stage: str) -> list[str]:
        """Names of the stages whose outputs `stage` reads."""
        graph = self._repo.index.graph
        [found] = [one for one in graph if getattr(one, "name", None) == stage]
        return [one.name for one in graph.successors(found) if getattr(one, "name", None)]

    def check_data(self, accept: bool) -> None:
        """Check that data/ exists and matches data.dvc; with `accept`, update data.dvc instead.

        Raises:
            UserError: data/ is missing, or differs from data.dvc.
        """
        if not self.project.data.is_dir():
            raise UserError(
                "data/ is missing; run `cloze sample` for a small synthetic dataset or `dvc pull data.dvc` for"
                " the pinned data, or see docs/real-data.md to use your own"
            )
        if not (self.project.root / PIN).exists():
            if not accept:
                raise UserError("data/ is not pinned; pin it with `dvc add data` or pass --accept-data")
            if self._may_write:
                self._repo.add(["data"])
        elif changes := self._status.get(PIN):
            as_pinned = all(state == "not in cache" for _, _, state in _entries(changes))  # a clone's first run
            if not accept and not as_pinned:
                raise UserError(
                    f"data/ differs from its pin in data.dvc: {self._data_changes()}; pass --accept-data to pin it as"
                    " it is, or restore it with `dvc checkout data.dvc`"
                )
            if self._may_write:
                self._commit(PIN)
        else:
            return
        if not self._may_write:
            return
        self._repo._reset()
        self._status = dict(self._repo.status())

    def _data_changes(self) -> str:
        """Count the files of data/ that differ from data.dvc, and name the first ones of each kind."""
        pinned = recorded_files(self.project, self.project.data.name) or {}
        [stage] = self._repo.stage.collect(PIN)
        [out] = stage.outs
        # The hashes are those that the status has just computed, in DVC's state.
        options = {"ignore": out.dvcignore, "dry_run": True, "no_progress_bar": True}
        *_, tree = out._build(out.cache, out.fs_path, out.fs, out.hash_name, **options)
        found = {entry["relpath"]: entry["md5"] for entry in tree.as_list()}
        kinds = {
            "changed": [name for name in pinned if name in found and found[name] != pinned[name]],
            "added": [name for name in found if name not in pinned],
            "deleted": [name for name in pinned if name not in found],
        }
        return "; ".join(
            f"{len(names):,} {kind}: {', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''}"
            for kind, names in kinds.items()
            if names
        )

    def status(
        self, stage: str, after: frozenset[str] = frozenset(), upstream: Mapping[str, str] | None = None
    ) -> StageStatus:
        """Return the status of `stage`.

        Args:
            after: the stages that have run since the graph was opened.
            upstream: outputs that will have been restored before; see `would_restore`.
        """
        changes = self._repo.status(targets=[stage]).get(stage) if after else self._status.get(stage)
        return StageStatus(stage, tuple(self._reasons(stage, changes or [], upstream or {})))

    def _reasons(self, stage: str, changes: list[Any], upstream: Mapping[str, str]) -> list[str]:
        """Convert DVC's status entries of a stage to short texts: `deps: data/glue modified`, `tokens.seed: 1 → 2`."""
        locked = locked_params(self.project, stage)
        if locked is None:
            return [_FIRST]
        recorded = inputs(self.project, stage)
        reasons = [f"deps: {path} modified" for path, md5 in upstream.items() if recorded.get(path, md5) != md5]
        for kind, path, state in _entries(changes):
            if kind == "deps" and path in upstream:
                continue
            if not isinstance(state, dict):
                if self._may_write or path not in MAY_BE_EMPTY or state != "deleted":
                    how = "does not exist" if state == "deleted" else state
                    reasons.append(f"{kind}: {path} {how}" if kind else path)
            elif path != _PARAMS or self._other_params is None:
                for name, how in state.items():
                    reasons += self._changes(path, name, locked) or [f"{path}: {name} {how}"]
        if self._other_params is not None:
            for name in locked.get(_PARAMS, {}):
                reasons += self._changes(_PARAMS, name, locked)
        return reasons

    def _changes(self, path: str, name: str, locked: dict[str, Any]) -> list[str]:
        """Describe what changed in a section of params.yaml, or in the code version of a stage."""
        before = locked.get(path, {}).get(name, UNSET)
        if path == VERSIONS:
            return [f"code version of {name}: {before} → {code_version(self.project, name)}"]
        if path != _PARAMS:
            return []
        now = read_yaml(self._other_params or self.project.params_path)
        return differences(before, now.get(name, UNSET), name)

    def restore(self, status: StageStatus) -> bool:
        """Restore the outputs of a stale stage from DVC's cache; False if it has not run with the same inputs before.

        Raises:
            UserError: a cached object, or a file in the output directory, is damaged.
        """
        from dvc.repo import lock_repo

        with lock_repo(self._repo):
            self._keep_in_run_cache(status.name)  # also what `dvc repro` has recorded
        is_unchanged = all(reason.startswith(_OUTS) for reason in status.reasons)
        if is_unchanged:
            for output in outputs(self.project, status.name):
                check_recorded(self.project, output, may_lack_folders=True)
            if self._check_out(status.name):
                return True
        if self._from_run_cache(status.name):
            return True
        if not is_unchanged:
            self._bring_results(status.name)
        return False

    def would_restore(self, status: StageStatus, upstream: Mapping[str, str]) -> dict[str, str] | None:
        """Return the outputs (path → MD5) that `restore` would take from the cache, or None. Writes nothing.

        Args:
            upstream: outputs that will have been restored before, as returned by this function.
        """
        if all(reason.startswith(_OUTS) for reason in status.reasons) and (recorded := self._intact(status.name)):
            return recorded
        entry = self._run_cache_entry(status.name, upstream)
        return None if entry is None else _md5s(entry)

    def _check_out(self, stage: str) -> bool:
        """Check out the outputs in dvc.lock of a stage with unchanged inputs, for which a pulled cache has no entry."""
        recorded = self._intact(stage)
        if not recorded:
            return False
        refuse_damaged(self.project, recorded)
        self._repo.checkout(targets=[stage], force=True)
        return True

    def _intact(self, stage: str) -> dict[str, str]:
        """Return the outputs (path → MD5) in dvc.lock if the cache has them and no other output was published since."""
        recorded = outputs(self.project, stage)
        if not is_cached(self.project, recorded) or not all(equals_lock(self.project, output) for output in recorded):
            return {}  # published by a run that was not recorded
        return recorded

    def _from_run_cache(self, stage: str) -> bool:
        with self._repo.lock:
            self._repo._reset()
            entry = self._run_cache_entry(stage, {})
            if entry is None:
                return False
            refuse_damaged(self.project, _md5s(entry))
            [found] = self._repo.stage.collect(stage)
            found.remove_outs(force=True)
            self._repo.stage_cache._create_stage(entry, wdir=found.wdir).checkout()
        self.record(stage)
        return True

    def _run_cache_entry(self, stage: str, upstream: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the newest entry of DVC's run cache for a stage with its present inputs, if the outputs are cached.

        DVC's own lookup skips stages with persistent outputs, and needs all inputs on disk.
        """
        from dvc.dependency.base import DependencyDoesNotExistError
        from dvc.dependency.param import MissingParamsError
        from dvc.stage.cache import _get_cache_hash
        from dvc.stage.serialize import to_single_stage_lockfile
        from dvc_data.hashfile.hash_info import HashInfo
        from dvc_data.hashfile.meta import Meta

        run_cache = self._repo.stage_cache
        try:
            [found] = self._repo.stage.collect(stage)
            for dep in found.deps:
                if dep.def_path in upstream:
                    dep.hash_info, dep.meta = HashInfo("md5", upstream[dep.def_path]), Meta()
                    continue
                place = dep.fs_path
                if dep.def_path == _PARAMS and self._other_params is not None:
                    dep.fs_path = str(self._other_params)
                dep.save()
                dep.fs_path = place
        except MissingParamsError as error:
            raise UserError(f"{stage}: {error} Add the section; `{stage}: {{}}` has the defaults") from None
        except DependencyDoesNotExistError:
            return None  # reported by the stage itself
        key = _get_cache_hash(to_single_stage_lockfile(found), key=True)
        entries = sorted(Path(run_cache._get_cache_dir(key)).glob("*"), key=lambda path: -path.stat().st_mtime_ns)
        for path in entries:
            entry: dict[str, Any] | None = run_cache._load_cache(key, path.name)
            if entry and run_cache._create_stage(entry, wdir=found.wdir).outs_cached():
                return entry
        return None

    def _keep_in_run_cache(self, stage: str) -> None:
        """Save what dvc.lock records of a stage in DVC's run cache, which DVC does not do for persistent outputs."""
        from dvc.stage.cache import _get_cache_hash
        from dvc.stage.serialize import to_single_stage_lockfile
        from dvc.utils.serialize import dump_yaml

        [found] = self._repo.stage.collect(stage)
        if found.cmd_changed or not all(one.hash_info for one in (*found.deps, *found.outs)):
            return
        entry = to_single_stage_lockfile(found)
        value = _get_cache_hash(entry)
        path = Path(self._repo.stage_cache._get_cache_path(_get_cache_hash(dict(entry), key=True), value))
        if not path.exists():
            partial = path.parent.with_name(f".{value}.{os.getpid()}.partial")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with named_if_full(path):
                    dump_yaml(str(partial), entry)
                    partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def _bring_results(self, stage: str) -> None:
        """Check out missing persistent outputs from the cache. The stage runs with other inputs, and reuses the results
        of the jobs that are still needed."""
        with self._repo.lock:
            self._repo._reset()
            [found] = self._repo.stage.collect(stage)
            missing = [out for out in found.outs if out.persist and out.hash_info and not out.exists]
            refuse_damaged(self.project, {out.def_path: str(out.hash_info.value) for out in missing})
            for out in missing:
                if not out.changed_cache():
                    out.checkout()

    def record(self, stage: str) -> None:
        """Record a finished stage in dvc.lock and in DVC's run cache (`dvc commit`)."""
        from dvc.repo import lock_repo

        with lock_repo(self._repo):
            self._commit(stage)
            self._keep_in_run_cache(stage)

    def _commit(self, target: str) -> None:
        """Let DVC record a target. DVC only logs that it could not copy a file into its cache."""
        failures: list[BaseException] = []

        def keep(record: logging.LogRecord) -> bool:
            if record.exc_info and record.exc_info[1]:
                failures.append(record.exc_info[1])
            return not failures

        _TRANSFERS.addFilter(keep)
        try:
            self._repo.commit(target, force=True)
        finally:
            _TRANSFERS.removeFilter(keep)
        if failures:
            raise failures[0]

    def close(self) -> None:
        self._repo.close()


def _entries(changes: list[Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield DVC's status entries of a stage: kind (deps or outs), path, and state, which is a dict for parameters."""
    for change in changes:
        if isinstance(change, str):
            yield "", change, None
            continue
        for kind, entries in change.items():
            for path, state in entries.items():
                yield kind.removeprefix("changed "), path, state


def _md5s(entry: dict[str, Any]) -> dict[str, str]:
    """Path → MD5 of the outputs in an entry of DVC's run cache."""
    return {out["path"]: out["md5"] for out in entry["outs"]}
