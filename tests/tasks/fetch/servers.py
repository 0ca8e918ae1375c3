"""Real servers on 127.0.0.1: of files with ranges and faults, and a door that fails on the way to another server."""

from __future__ import annotations

import hashlib
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """An HTTP server in a thread; `requests` holds (method, path, Range) of what was asked."""

    def __init__(self, answer: Callable[[Any], None]) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with server.lock:
                    server.requests.append((self.command, self.path, self.headers.get("Range", "")))
                answer(self)

            do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, str]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # the client has gone: that is tested
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class Files(Server):
    """Serves `files` by path, with ranges and ETags.

    `cut_after` breaks the connection after so many bytes of each answer; `fail_every` answers 503 to every so-manieth
    request; `ranges` off sends whole files only.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.cut_after: int | None = None
        self.fail_every = 0
        self.ranges = True
        super().__init__(self._answer)

    def _answer(self, request: Any) -> None:
        path = request.path.partition("?")[0]
        if self.fail_every and len(self.requests) % self.fail_every == 0:
            return reply(request, 503, b"slow down", {"Retry-After": "0"})
        content = self.files.get(path)
        if content is None:
            return reply(request, 404, b"")
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        wanted = request.headers.get("Range", "") if self.ranges else ""
        if request.headers.get("If-Range", etag) != etag:
            wanted = ""
        headers = {"ETag": etag}
        if not wanted:
            return reply(request, 200, content, headers, self.cut_after)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content) - 1) + 1, len(content))
        if begin >= len(content):
            return reply(request, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return reply(request, 206, content[begin:end], headers, self.cut_after)


def reply(
    request: Any, status: int, body: bytes, headers: dict[str, str] | None = None, cut_after: int | None = None
) -> None:
    """Answer a request; with `cut_after`, break the connection after so many bytes of the body."""
    request.send_response(status)
    headers = {"Content-Length": str(len(body))} | (headers or {})
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body if cut_after is None else body[:cut_after])
        if cut_after is not None and cut_after < len(body):
            request.close_connection = True
            request.connection.shutdown(2)


class FailingDoor(Server):
    """Passes requests on to another server and fails at every third: by turns 503, a broken line, half a body."""

    def __init__(self, host: str, port: int, fail_every: int = 3) -> None:
        self._target = (host, port)
        self.fail_every = fail_every
        self.num_failures = 0
        self.count = 0
        super().__init__(self._answer)

    def _answer(self, request: Any) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with self.lock:
            self.count += 1
            fails = self.fail_every and self.count % self.fail_every == 0
            self.num_failures += bool(fails)
            way = self.num_failures % 3
        if fails and way == 1:
            slow = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
            return reply(request, 503, slow if request.command != "HEAD" else b"", {"Content-Type": "application/xml"})
        if fails and way == 2:
            request.close_connection = True
            return request.connection.shutdown(2)
        connection = http.client.HTTPConnection(*self._target)
        connection.request(request.command, request.path, body, dict(request.headers))
        answer = connection.getresponse()
        content = answer.read()
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "transfer-encoding")
        }
        connection.close()
        return reply(request, answer.status, content, headers, len(content) // 2 if fails and content else None)
