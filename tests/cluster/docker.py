"""Debian's Docker engine on this machine, a base image made by debootstrap, and the image of infra/image on it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from model.common.files import digest_of_file
from tests.conftest import ROOT

CLIENT = "/usr/bin/docker"  # Debian's; another client, without an engine, may come first on the PATH
BASE, IMAGE = "cloze-base:test", "cloze:test"
NETWORK = "pods"
_PROGRAMS = {
    CLIENT: "docker.io",
    "/usr/sbin/dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "eatmydata": "eatmydata",
}
_CAP_SYS_ADMIN = 21
_PACKAGES = ("ca-certificates", "git", "python3-distutils", "python3-venv", "tini")
_LEFT_OUT = ("./var/cache/apt/", "./var/lib/apt/lists/", "./usr/share/doc/", "./usr/share/locale/", "./usr/share/man/")
# Debian's Python 3.11.2 needs one package more than the Python of the tests; hatchling builds Cloze's wheel.
_ALSO = ("async-timeout", "hatchling")


def why_not() -> str | None:
    """Return why Docker cannot run here; None if it can."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "Docker's engine needs Linux and root"
    capabilities = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if capabilities is None or not int(capabilities[1], 16) >> _CAP_SYS_ADMIN & 1:
        return "Docker's engine needs the right to mount file systems"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{missing[0]} is not installed (Debian: {_PROGRAMS[missing[0]]})" if missing else None


class Engine:
    """A Docker engine whose data and socket are in `folder`, and that changes no rule of the machine's firewall.

    Containers in the network `NETWORK` reach one another and this machine by name, but nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"

    def start(self) -> None:
        """Start the engine, and wait until it answers."""
        self.folder.mkdir(parents=True)
        command = ["/usr/sbin/dockerd", "--host", self.address, "--data-root", f"{self.folder}/data"]
        command += ["--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid"]
        command += [
            "--exec-opt",
            "native.cgroupdriver=cgroupfs",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
        ]
        (self.folder / "config.json").write_text("{}")
        command += ["--config-file", f"{self.folder}/config.json"]  # not that of the machine's own engine
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        while subprocess.run([CLIENT, "--host", self.address, "version"], capture_output=True, check=False).returncode:
            said = (self.folder / "log").read_text()[-1500:]
            assert process.poll() is None and time.monotonic() < deadline, f"Docker does not start:\n{said}"
            time.sleep(0.2)
        self.run("network", "create", NETWORK)

    def run(self, *words: str, code: int = 0, **options: Any) -> str:
        """Run a command of Docker's client, and return what it printed."""
        options = {"capture_output": True, "text": True, "check": False} | options
        done = subprocess.run([CLIENT, "--host", self.address, *words], **options)
        said = f"{done.stdout or ''}{done.stderr or ''}"
        assert done.returncode == code, f"docker {' '.join(words)} ended with {done.returncode}:\n{said[-6000:]}"
        return said

    def has(self, image: str) -> bool:
        """Check whether an image exists."""
        return bool(self.run("images", "--quiet", image).strip())

    def load_base(self) -> None:
        """Import Debian bookworm with Python 3.11 as the image `BASE`, which replaces python:3.11-slim."""
        if not self.has(BASE):
            with FileLock(_cache() / "base.lock"):
                path = _base_archive()
            change = "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
            self.run("import", "--change", change, str(path), BASE)

    def build(self) -> None:
        """Build the image `IMAGE` of infra/image from this working tree. pip takes the packages from this machine."""
        if self.has(IMAGE):
            return
        with ThreadPoolExecutor(1) as pool, FileLock(_cache() / "wheels.lock"):
            base = pool.submit(self.load_base)
            wheels = _wheels()
            base.result()
            with _index(wheels) as index:
                self.run(
                    *("build", "--network=host", "--progress=plain", "--file", str(ROOT / "infra/image/Dockerfile")),
                    *(
                        "--build-arg",
                        f"BASE={BASE}",
                        "--build-arg",
                        f"PIP_INDEX_URL={index}",
                        "--tag",
                        IMAGE,
                        str(ROOT),
                    ),
                    env={**os.environ, "DOCKER_BUILDKIT": "1"},
                )

    def close(self) -> None:
        """Remove all containers, stop the engine and delete its data."""
        if containers := self.run("ps", "--all", "--quiet").split():
            self.run("rm", "--force", *containers)
        self.run("network", "rm", NETWORK)  # with its bridge
        engine = psutil.Process(int((self.folder / "pid").read_text()))
        below = [engine, *engine.children(recursive=True)]
        engine.terminate()
        _gone, alive = psutil.wait_procs(below, 30)
        for process in alive:
            process.kill()
        for line in Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", line.split()[1]], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def shared_engine(factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for all processes of a test session: the first starts it, the last one stops it."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    engine, users = Engine(shared / "docker"), shared / "docker.users"
    with FileLock(shared / "docker.lock"):
        count = int(users.read_text()) if users.exists() else 0
        if not count:
            engine.start()
        users.write_text(str(count + 1))
    try:
        yield engine
    finally:
        with FileLock(shared / "docker.lock"):
            count = int(users.read_text()) - 1
            users.write_text(str(count))
            if not count:
                engine.close()


def _cache() -> Path:
    """Directory of what takes minutes to fetch, and does not depend on the code."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloze-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _base_archive() -> Path:
    """Return the file system of Debian bookworm with `_PACKAGES`, as a tar archive."""
    path = _cache() / "bookworm.tar"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=_cache()) as folder:
        root = Path(folder) / "root"
        # eatmydata: dpkg's thousands of fsync calls take two thirds of the time.
        command = [
            "unshare",
            "--mount",
            "eatmydata",
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(_PACKAGES)}",
            "bookworm",
        ]
        done = subprocess.run([*command, str(root)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"debootstrap failed:\n{done.stdout[-2000:]}"
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")  # as in python:3.11-slim
        part = path.with_suffix(".part")
        with tarfile.open(part, "w") as archive:
            archive.add(root, ".", filter=lambda one: None if one.name.startswith(_LEFT_OUT) else one)
        part.rename(path)
    return path


def _wheels() -> Path:
    """Return a directory with the wheels of what the image installs, fetched and chosen by this machine's pip."""
    digest = "".join(digest_of_file(ROOT / name)[:8] for name in ("constraints.txt", "pyproject.toml"))
    path = _cache() / f"wheels-{digest}"
    if path.exists():
        return path
    for other in _cache().glob("wheels-*/"):
        shutil.rmtree(other)
    part = path.with_name(f"part-{path.name}")
    shutil.rmtree(part, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--constraint",
        "constraints.txt",
        "--wheel-dir",
        str(part),
    ]
    done = subprocess.run([*command, ".[cluster]", *_ALSO], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip wheel failed:\n{done.stderr[-2000:]}"
    part.rename(path)
    return path


@contextlib.contextmanager
def _index(wheels: Path) -> Iterator[str]:
    """Serve wheels as a package index (PEP 503), and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels.glob("*.whl"):
            name = re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
            (Path(folder) / name).mkdir(exist_ok=True)
            (Path(folder) / name / wheel.name).symlink_to(wheel)
        handler = functools.partial(_Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/"
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass
