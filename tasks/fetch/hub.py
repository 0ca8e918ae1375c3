"""The fetch source types dataset and model: files at a pinned commit of the hub, or columns and rows as Parquet.

huggingface_hub downloads the files (from HF_ENDPOINT, with its token). Each is compared with the digest that the hub
stores for it.
"""

from __future__ import annotations

import functools
import glob
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from model.common.errors import Paused, UserError
from tasks.fetch.transfer import (
    Attempts,
    FetchedFile,
    Report,
    StagingArea,
    check_stop,
    hashes,
    one_line,
    raise_disk_error,
    safe_name,
)
from tasks.params.fetch import MODEL_FILES, DatasetSource, FetchSettings, HubSource
from tasks.project.workspace import folder_bytes, require_space

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BATCH_ROWS = 1000


def fetch(source: HubSource, settings: FetchSettings, staging: StagingArea, report: Report) -> None:
    """Download the split or the model into `staging`.

    Raises:
        UserError: the revision is not a commit, or the hub has no such repository, config, split or column.
        Gone: the hub failed too often.
    """
    from datasets.utils import logging as datasets_logging
    from huggingface_hub.utils import logging as hub_logging

    if not _COMMIT.fullmatch(source.revision):
        raise UserError(_pin_hint(source, settings))
    # Silence the libraries' progress bars, and their warnings, which may contain tokens.
    datasets_logging.disable_progress_bar()
    datasets_logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    # A third of the attempts, because the hub's libraries retry for half a minute before they fail.
    attempts = Attempts(source.shown, -(-settings.attempts // 3), settings.wait_seconds)
    if isinstance(source, DatasetSource) and (source.columns or source.max_rows):
        _select(source, attempts, staging, report)
    else:
        _files(source, attempts, settings, staging, report)


def _pin_hint(source: HubSource, settings: FetchSettings) -> str:
    """Message for a revision that is not a commit; it names the commit to use."""
    from huggingface_hub import HfApi

    branch = source.revision or "main"
    what = f"params.yaml: fetch source '{source.name}': the revision "
    what += f"'{branch}' is no commit" if source.revision else "is missing"
    try:
        info = HfApi().repo_info(source.repo, repo_type=source.kind, revision=branch, timeout=settings.timeout_seconds)
    except Exception as error:  # in any case, the commit is not available
        page = f"the {source.kind}'s page (asking the hub: {type(error).__name__})"
        return f"{what}; pin one (40 hexadecimal digits) from {page}"
    return f"{what}; pin the one that {branch} is at now: `revision: {info.sha}`"


def _files(
    source: HubSource,
    attempts: Attempts,
    settings: FetchSettings,
    staging: StagingArea,
    report: Report,
) -> None:
    from huggingface_hub import HfApi, snapshot_download

    at: dict[str, Any] = {"revision": source.revision, "repo_type": source.kind}
    paths = _trying(source, attempts, lambda: _paths(source))
    found = _trying(source, attempts, lambda: HfApi().get_paths_info(source.repo, paths, **at))
    shared = os.path.commonpath([PurePosixPath(path).parent for path in paths])
    names = {path: safe_name(PurePosixPath(path).relative_to(shared).as_posix(), source.shown) for path in paths}
    staging.keep_only(names.values())
    missing = [entry for entry in found if names[entry.path] not in staging.files]
    total = sum(entry.size for entry in found)
    require_space(staging.folder, total - folder_bytes(staging.folder), source.shown)
    downloads = staging.folder / "hub"
    for left in downloads.rglob("*.incomplete"):  # of a killed process; the library does not resume them
        left.unlink()

    def download() -> None:
        wanted = [glob.escape(entry.path) for entry in missing]
        bar = _progress_bar(staging, total, report)
        snapshot_download(source.repo, **at, allow_patterns=wanted, local_dir=downloads, tqdm_class=bar)
        # If the hub does not answer, the library returns a folder that lacks files.
        absent = [entry.path for entry in missing if not (downloads / entry.path).is_file()]
        if absent:
            raise ConnectionError(absent[0])

    if missing:
        _trying(source, attempts, download)
    for number, entry in enumerate(missing):
        report(number, len(missing), f"checking {entry.path}")
        _keep(source, entry, downloads / entry.path, names[entry.path], staging)


def _progress_bar(staging: StagingArea, total: int, report: Report) -> Any:
    """A class that snapshot_download uses as its progress bar: reports the bytes in the staging area."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[type-arg, misc]
        def update(self, n: float | None = 1) -> None:
            check_stop()
            done = folder_bytes(staging.folder)
            report(min(done, total), total, f"{done / 1e6:,.0f} MB")

    return Bar


def _keep(source: HubSource, entry: Any, path: Path, name: str, staging: StagingArea) -> None:
    """Compare a downloaded file with the digest that the hub stores: SHA-256 of large files (LFS), git's of others."""
    from huggingface_hub.utils.sha import git_hash

    sha256 = hashes(path)["sha256"]
    checked, expected = ("sha256", entry.lfs.sha256) if entry.lfs else ("git", entry.blob_id)
    actual = sha256 if entry.lfs else git_hash(path.read_bytes())  # files outside LFS are small
    if path.stat().st_size != entry.size or actual != expected:
        path.unlink()
        raise UserError(
            f"{source.shown}: {entry.path}: its digest is {actual}, expected {expected}; it was discarded, fetch again"
        )
    origin = f"hub:{source.repo}@{source.revision}/{entry.path}"
    staging.keep(name, path, FetchedFile(entry.size, sha256, origin, checked))


def _paths(source: HubSource) -> list[str]:
    """Paths of the files to fetch within the repository."""
    if isinstance(source, DatasetSource) and not source.files:
        files = _builder(source).config.data_files
        mark = f"{source.repo}@{source.revision}/"
        return [str(file).partition(mark)[2] for file in files[source.split]]
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    present = HfApi().list_repo_files(source.repo, revision=source.revision, repo_type=source.kind)
    wanted = list(filter_repo_objects(present, allow_patterns=list(source.files or MODEL_FILES)))
    missing = [name for name in MODEL_FILES[:3] if name not in wanted]
    if not source.files and missing:
        raise UserError(f"{source.shown}: has no {missing[0]}; name the files to fetch in `files`")
    if not wanted:
        raise UserError(f"{source.shown}: no file matches {', '.join(source.files)}")
    return wanted


def _builder(source: DatasetSource) -> Any:
    """The builder of the dataset at this revision; it only reads the card and lists files."""
    from datasets import load_dataset_builder

    if source.files:
        files = {source.split: list(source.files)}
        return load_dataset_builder(source.repo, data_files=files, revision=source.revision)
    builder = load_dataset_builder(source.repo, source.config, revision=source.revision)
    _require(source, "split", source.split, list(map(str, builder.config.data_files or {})))
    return builder


def _select(source: DatasetSource, attempts: Attempts, staging: StagingArea, report: Report) -> None:
    """Stream the selected columns and rows into one Parquet file per file of the split."""
    import pyarrow.parquet

    stream = _trying(source, attempts, lambda: _stream(source))
    left = source.max_rows

    def write(number: int, part: Path) -> None:
        written = 0
        tables = stream.shard(stream.num_shards, number).with_format("arrow").iter(_BATCH_ROWS)
        first = next(tables, None)
        if first is None:
            raise UserError(f"{source.shown}: file {number + 1} holds no rows")
        with pyarrow.parquet.ParquetWriter(part, first.schema) as writer:
            for table in itertools.chain([first], tables):
                table = table if left is None else table.slice(0, left - written)
                writer.write_table(table)
                written += table.num_rows
                check_stop()
                report(number, stream.num_shards, f"{written:,} rows of file {number + 1}")
                if written == left:
                    break

    for number in range(stream.num_shards):
        name = f"{source.split}-{number:05}-of-{stream.num_shards:05}.parquet"
        if name not in staging.files:
            part = staging.part(name)
            _trying(source, attempts, functools.partial(write, number, part))
            url = f"hub:{source.repo}@{source.revision}#{source.split}/{number}"
            staging.keep(name, part, FetchedFile(part.stat().st_size, hashes(part)["sha256"], url, "size"))
        if left is not None:
            left -= pyarrow.parquet.read_metadata(staging.whole / name).num_rows
            if left <= 0:
                break


def _stream(source: DatasetSource) -> Any:
    stream = _builder(source).as_streaming_dataset(split=source.split)
    if source.columns:
        known = stream.column_names or stream._resolve_features().column_names
        for column in source.columns:
            _require(source, "column", column, known)
        stream = stream.select_columns(list(source.columns))
    return stream


def _require(source: HubSource, what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise UserError(f"{source.shown}: no {what} '{name}', only {', '.join(known)}")


def _trying(source: HubSource, attempts: Attempts, call: Callable[[], Any]) -> Any:
    """Call the hub's libraries until they succeed; errors other than connection failures are raised."""
    while True:
        check_stop()
        try:
            result = call()
            attempts.succeeded()
            return result
        except (UserError, Paused):
            raise
        except Exception as error:
            raise_disk_error(error)
            reason = _failure(source, error)
        attempts.failed(reason)


def _failure(source: HubSource, error: Exception) -> str:
    """Describe a connection failure.

    Raises:
        UserError: the error concerns the request instead.
    """
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", 0)
    is_not_found = isinstance(error, errors.RepositoryNotFoundError | DatasetNotFoundError)
    is_connection_error = isinstance(error, OSError | errors.LocalEntryNotFoundError) and not isinstance(
        error, DatasetsError
    )
    # httpx or its successor, whichever the installed huggingface_hub speaks with
    is_connection_error |= type(error).__module__.startswith(("httpx", "httpcore", "aiohttp", "requests"))
    if isinstance(error, errors.GatedRepoError):
        refusal = "access is gated: accept the conditions on the hub, then set HF_TOKEN"
    elif isinstance(error, errors.RevisionNotFoundError) or (is_not_found and "revision" in str(error).lower()):
        refusal = f"no revision {source.revision}"
    elif is_not_found:
        refusal = f"no such {source.kind}, or it is private: then set HF_TOKEN"
    elif status in (408, 425, 429) or status >= 500:
        return f"the hub returned {status}"
    elif status:
        refusal = f"the hub returned {status}"
    elif is_connection_error:
        return f"the connection failed ({type(error).__name__})"
    elif isinstance(error, ValueError | RuntimeError | DatasetsError):  # an unknown config, a dataset that is a script
        hint = f" that match files: {', '.join(source.files)}" if source.files else ""
        hint = "; take its Parquet form: revision: refs/convert/parquet" if "script" in str(error) else hint
        refusal = f"{one_line(error)[:300]}{hint}"
    else:
        raise error
    raise UserError(f"{source.shown}: {refusal}") from None
