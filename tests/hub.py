"""A server with the parts of the Hugging Face hub's protocol that its library uses to download and upload."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.tasks.fetch.servers import Server, reply

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_the_test"


@dataclass
class Repository:
    """A repository at its newest commit. Binary files are large files (LFS)."""

    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    is_private: bool = False

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        entry: dict[str, Any] = {"type": "file", "path": path, "oid": _blob_id(content), "size": len(content)}
        if _is_large(path):
            entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 130}
        return entry

    def entries(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        below = [path for path in self.files if not folder or path.startswith(f"{folder}/")]
        inside = {path: path.removeprefix(f"{folder}/") if folder else path for path in below}
        entries = [self.entry(path) for path, rest in inside.items() if recursive or "/" not in rest]
        folders = {path[: len(path) - len(rest)] + rest.split("/")[0] for path, rest in inside.items() if "/" in rest}
        return entries + [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders)]


class Hub(Server):
    """Serves repositories by kind and name.

    `cut_after` breaks the connection after so many bytes of each large file. `replaced` holds contents that are served
    instead of a file's own, as by a broken mirror. Of the file `held`, only the first half is sent until `release` is
    set. Uploads need `TOKEN`.
    """

    def __init__(self, name: str = "", files: dict[str, bytes] | None = None, kind: str = "dataset") -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        if name:
            self.add(name, files or {}, kind)
        self.cut_after: int | None = None
        self.replaced: dict[str, bytes] = {}
        self.held = ""
        self.release = threading.Event()
        self._uploaded: dict[str, bytes] = {}
        super().__init__(self._answer)

    def add(self, name: str, files: dict[str, bytes], kind: str = "dataset") -> Repository:
        repository = self.repositories[kind, name] = Repository(files)
        return repository

    def _answer(self, request: Any) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        path = unquote(request.path.partition("?")[0])
        if path == "/api/repos/create":
            return self._create(request, json.loads(body))
        if path == "/api/validate-yaml":
            return _json(request, {"errors": [], "warnings": []})
        if path.startswith("/lfs/"):
            self._uploaded[path.removeprefix("/lfs/")] = body
            return reply(request, 200, b"")
        for (kind, name), repository in self.repositories.items():
            plain = f"/datasets/{name}" if kind == "dataset" else f"/{name}"
            if path == f"/{name}.git/info/lfs/objects/batch":
                return self._batch(request, json.loads(body))
            if path == f"/api/{kind}s/{name}" or path.startswith(f"/api/{kind}s/{name}/"):
                return self._api(request, repository, name, path.removeprefix(f"/api/{kind}s/{name}"), body)
            for revision in (repository.commit, "main"):
                if path.startswith(f"{plain}/resolve/{revision}/"):
                    return self._file(request, repository, path.removeprefix(f"{plain}/resolve/{revision}/"))
            if path.startswith((f"{plain}/resolve/", f"{plain}/raw/")):
                return _missing(request, "RevisionNotFound")
        return _missing(request, "RepoNotFound")

    def _api(self, request: Any, repository: Repository, name: str, path: str, body: bytes) -> None:
        what, _, rest = path.strip("/").partition("/")
        revision, _, folder = rest.partition("/")
        if revision not in ("", "main", repository.commit):
            return _missing(request, "RevisionNotFound")
        if what in ("", "revision"):
            siblings = [{"rfilename": file} for file in repository.files]
            info = {"id": name, "sha": repository.commit, "siblings": siblings, "tags": []}
            return _json(request, {**info, "private": repository.is_private})
        if what == "tree":
            entries = repository.entries(folder, "recursive=true" in request.path.lower())
            return _json(request, entries) if entries or not folder else _missing(request, "EntryNotFound")
        if what == "paths-info":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode()).get("paths", [])
            return _json(request, [repository.entry(file) for file in asked if file in repository.files])
        if not _is_allowed(request):
            return reply(request, 403, b'{"error": "forbidden"}')
        if what == "preupload":
            return _json(request, {"files": [_upload_mode(repository, file) for file in json.loads(body)["files"]]})
        if what == "commit":
            return self._commit(request, repository, name, body)
        return _missing(request, "EntryNotFound")

    def _create(self, request: Any, asked: dict[str, Any]) -> None:
        if not _is_allowed(request):
            return reply(request, 401, b'{"error": "unauthorized"}')
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        if ("model", name) in self.repositories:
            return _json(request, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}, 409)
        self.add(name, {}, "model").is_private = asked["visibility"] == "private"
        return _json(request, {"url": f"{self.url}/{name}", "name": name})

    def _batch(self, request: Any, asked: dict[str, Any]) -> None:
        objects = [{**one, "actions": {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}} for one in asked["objects"]]
        return _json(request, {"transfer": "basic", "objects": objects})

    def _commit(self, request: Any, repository: Repository, name: str, body: bytes) -> None:
        for line in body.splitlines():
            row = json.loads(line)
            value = row["value"]
            if row["key"] == "lfsFile":
                content = self._uploaded[value["oid"]]
                assert _sha256(content) == value["oid"], "the upload arrived incomplete"
                repository.files[value["path"]] = content
            elif row["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "deletedFile":
                del repository.files[value["path"]]
        repository.commit = hashlib.sha1(repository.commit.encode() + body).hexdigest()
        url = f"{self.url}/{name}/commit/{repository.commit}"
        return _json(request, {"commitUrl": url, "commitOid": repository.commit, "pullRequestUrl": None})

    def _file(self, request: Any, repository: Repository, path: str) -> None:
        if path not in repository.files:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit}
            return reply(request, 404, b"", headers)
        own = repository.files[path]
        etag = _sha256(own) if _is_large(path) else _blob_id(own)
        content = self.replaced.get(path, own)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        wanted = request.headers.get("Range", "")
        cut = self.cut_after if _is_large(path) else None
        if path == self.held and request.command == "GET":
            request.send_response(200)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content[: len(content) // 2])
            self.release.wait(60)
            return request.wfile.write(content[len(content) // 2 :])
        if not wanted:
            return reply(request, 200, content, headers, cut)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content) - 1) + 1, len(content))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return reply(request, 206, content[begin:end], headers, cut)


def _upload_mode(repository: Repository, file: dict[str, Any]) -> dict[str, Any]:
    path = file["path"]
    mode = {"path": path, "uploadMode": "lfs" if _is_large(path) else "regular", "shouldIgnore": False}
    if path in repository.files:
        content = repository.files[path]
        mode["oid"] = _sha256(content) if _is_large(path) else _blob_id(content)
    return mode


def _is_large(path: str) -> bool:
    return not path.endswith((".md", ".json", ".txt"))


def _is_allowed(request: Any) -> bool:
    return bool(request.headers.get("Authorization") == f"Bearer {TOKEN}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _json(request: Any, content: Any, status: int = 200) -> None:
    reply(request, status, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _missing(request: Any, code: str) -> None:
    reply(request, 404, b"{}", {"X-Error-Code": code})
