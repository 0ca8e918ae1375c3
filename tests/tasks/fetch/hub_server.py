"""A server that speaks as much of the hub's protocol as its libraries ask for: one repository at one commit."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import unquote

from tests.tasks.fetch.servers import Server, reply

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(Server):
    """Serves `files` (path: content) as the dataset or model `name`; all but README.md are large files (LFS)."""

    def __init__(self, name: str, files: dict[str, bytes], kind: str = "dataset") -> None:
        self.name, self.kind = name, kind
        self.files = files
        self.cut_after: int | None = None
        super().__init__(self._answer)

    def _answer(self, request: Any) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        path = unquote(request.path.partition("?")[0])
        api = f"/api/{self.kind}s/{self.name}"
        plain = f"/datasets/{self.name}/resolve/" if self.kind == "dataset" else f"/{self.name}/resolve/"
        if path == api or path in (f"{api}/revision/{COMMIT}", f"{api}/revision/main"):
            siblings = [{"rfilename": file} for file in self.files]
            return self._json(
                request, {"id": self.name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            )
        if path.startswith(f"{api}/tree/{COMMIT}"):
            folder = path.removeprefix(f"{api}/tree/{COMMIT}").strip("/")
            return self._tree(request, folder, "recursive=true" in request.path.lower())
        if path == f"{api}/paths-info/{COMMIT}":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else _form(body)
            return self._json(request, [self._entry(file) for file in asked if file in self.files])
        for revision in (COMMIT, "main"):
            if path.startswith(plain + revision + "/"):
                return self._file(request, path.removeprefix(plain + revision + "/"))
        fault = "RevisionNotFound" if self.name in path else "RepoNotFound"
        return reply(request, 404, b"{}", {"X-Error-Code": fault})

    def _tree(self, request: Any, folder: str, recursive: bool) -> None:
        below = [file for file in self.files if not folder or file.startswith(f"{folder}/")]
        if folder and not below:
            return reply(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        inside = {file: file.removeprefix(f"{folder}/") if folder else file for file in below}
        entries = [self._entry(file) for file, rest in inside.items() if recursive or "/" not in rest]
        folders = {file[: len(file) - len(rest)] + rest.split("/")[0] for file, rest in inside.items() if "/" in rest}
        entries += [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)]
        return self._json(request, entries)

    def _entry(self, file: str) -> dict[str, Any]:
        content = self.files[file]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": file, "oid": blob, "size": len(content)}
        if file != "README.md":
            entry["lfs"] = {"oid": self._etag(file), "size": len(content), "pointerSize": 130}
        return entry

    def _etag(self, file: str) -> str:
        content = self.files[file]
        return hashlib.sha256(content).hexdigest()

    def _file(self, request: Any, file: str) -> None:
        content = self.files.get(file)
        if content is None:
            return reply(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"ETag": f'"{self._etag(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = request.headers.get("Range", "")
        cut = None if file == "README.md" else self.cut_after
        if not wanted:
            return reply(request, 200, content, headers, cut)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content) - 1) + 1, len(content))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return reply(request, 206, content[begin:end], headers, cut)

    def _json(self, request: Any, content: Any) -> None:
        reply(request, 200, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _form(body: bytes) -> list[str]:
    from urllib.parse import parse_qs

    return parse_qs(body.decode()).get("paths", [])
