"""Manifests of published outputs: the MD5 of each file, so that corruption is detected where a file is used.

DVC knows an output only after it is committed, and compares only size and time. Therefore each stage records what it
publishes. Consumers read outputs completely and accept only files that match the stage's record or dvc.lock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model.common.errors import UserError
from model.common.files import write_json
from tasks.dvc.dvc_digests import LOCK, cache_of, md5_of, md5s_of, object_path, recorded_files
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import read_record
from tasks.project.yaml_files import read_yaml

_PERSISTENT = ("pretrain", "finetune")  # these reuse their previous outputs
_WEIGHTS = ".safetensors"


def note(project: Project, stage: str, folder: Path) -> None:
    """Record the files of `folder`, which is about to be published as build/`stage`.

    Damaged cache objects of these files are deleted, because DVC would trust them and replace the files by them.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = md5s_of(paths)
    path = _path(project, stage)
    # Also keep the previous record, in case of a kill before the publication.
    write_json(path, {"now": files, "before": read_record(path).get("now", {})})
    objects = cache_of(project)
    there = {name: place for name, md5 in files.items() if (place := object_path(objects, md5)).is_file()}
    for name, md5 in md5s_of(there).items():
        if md5 != files[name]:
            echo(
                f"cloze: {project.relative(there[name])}: the cached object of build/{stage}/{name} was damaged;"
                " it is deleted and will be stored again"
            )
            there[name].unlink(missing_ok=True)


def check_inputs(project: Project, stage: str) -> None:
    """Check the inputs of a stage below build/, and the previous outputs that it reuses, against their records.

    Weights are skipped for the leaderboard, which does not read them.

    Raises:
        UserError: a file is missing or differs; the message names it.
    """
    read = (lambda name: not name.endswith(_WEIGHTS)) if stage == "leaderboard" else _all
    for dependency in read_yaml(project.root / "dvc.yaml").get("stages", {}).get(stage, {}).get("deps") or []:
        if (project.root / dependency).is_relative_to(project.build):
            check_recorded(project, dependency, wanted=read)
    if stage in _PERSISTENT:
        check_recorded(project, f"build/{stage}", may_lack_folders=True)


def check_folder(folder: Path) -> None:
    """Check a directory that is about to be used, if it is part of a stage's output."""
    folder = folder.resolve()
    try:
        project = Project.find(folder)
    except UserError:
        return
    if folder.is_relative_to(project.build) and folder != project.build:
        stage, *parts = folder.relative_to(project.build).parts
        check_recorded(project, f"build/{stage}", "/".join(parts))


def check_recorded(
    project: Project,
    output: str,
    folder: str = "",
    *,
    may_lack_folders: bool = False,
    wanted: Callable[[str], bool] = lambda _name: True,
) -> bool:
    """Check that the files of `output` (below `folder`) match the stage's record or that of DVC.

    Args:
        output: output of a stage, such as `build/pretrain`.
        may_lack_folders: accept missing files whose whole directory is missing.
        wanted: selects the files to read, by their names in the output.

    Returns:
        False if there is no record of such files.

    Raises:
        UserError: a file is missing or differs; the message names it.
    """
    begin = f"{folder}/" if folder else ""
    noted = read_record(_path(project, Path(output).name))
    records: list[dict[str, str]] = [noted[key] for key in ("now", "before") if noted.get(key)]
    in_force = [noted["now"]] if noted.get("now") else []
    found: dict[str, str] = {}

    def fault() -> tuple[str, str]:
        """Return the first file that is missing or differs, and the reason; two empty texts if there is none."""
        names = sorted({name for files in records for name in files if name.startswith(begin) and wanted(name)})
        paths = {name: project.root / output / name for name in names}
        found.update(md5s_of({name: path for name, path in paths.items() if name not in found and path.is_file()}))
        for name in names:
            if name not in found:
                if all(name in files for files in in_force) and not (
                    may_lack_folders and not (project.root / _unit(output, name)).is_dir()
                ):
                    return name, "missing"
            elif not any(files.get(name) == found[name] for files in records):
                return name, f"its MD5 is {found[name]}"
        return "", ""

    if not records or fault()[0]:
        committed = recorded_files(project, output)
        if committed is not None:
            records.append(committed)
            in_force.append(committed)
        name, what = fault()
        if name:
            who = LOCK if committed is not None and name in committed else "the record of its stage"
            says = "names it" if what == "missing" else f"says {(committed or records[0]).get(name, 'another')}"
            hint = "" if what == "missing" else ": changed or damaged"
            raise UserError(
                f"{output}/{name}: {what}, though {who} {says}{hint}; remove {_unit(output, name)}, and"
                f" restore it with `dvc checkout --force {output}` or a run"
            )
    return bool(found)


def equals_lock(project: Project, output: str) -> bool:
    """Check whether all existing files of an output match dvc.lock; some may be missing."""
    recorded = recorded_files(project, output)
    if recorded is None:
        return False
    folder = project.root / output
    paths = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return all(recorded.get(path.relative_to(folder).as_posix()) == md5_of(path) for path in paths)


def _all(_name: str) -> bool:
    return True


def _unit(output: str, name: str) -> str:
    """Directory to delete and restore as a whole: that of an encoder, or the parent of the file."""
    if Path(output).name == "pretrain" and "/" in name:
        return f"{output}/{name.split('/')[0]}"
    return str(Path(output, name).parent)


def _path(project: Project, stage: str) -> Path:
    return project.runs / "published" / f"{stage}.json"
