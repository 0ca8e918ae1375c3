"""Writes requirements.lock: every package at its version, with the digests of the files that a supported machine takes.

`make lock` calls it with what `uv pip compile --universal --format pylock.toml` has found. Supported is CPython 3.11 on
Linux and macOS; where a package has no wheel for one of them, its source has a digest, too. No address is written.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

MINOR = 11
PLATFORMS = {
    ("linux", "x86_64"): r"any|(many)?linux\w*_x86_64",
    ("linux", "aarch64"): r"any|(many)?linux\w*_aarch64",
    ("darwin", "arm64"): r"any|macosx_\w+_(arm64|universal2)",
    ("darwin", "x86_64"): r"any|macosx_\w+_(x86_64|intel|universal2)",
}
"""System and machine, and the platform tags that its wheels have."""
HEAD = """\
# Every package with the digests of its files, for CPython 3.11 on Linux and macOS. Made by `make lock`.
"""


def fits(tag: Any) -> bool:
    """Whether CPython 3.11 loads a wheel of this tag."""
    version = re.fullmatch(r"cp3(\d+)", tag.interpreter)
    if version is None:
        return tag.interpreter in ("py3", f"py3{MINOR}", "py2.py3") and tag.abi == "none"
    return int(version[1]) == MINOR or (int(version[1]) < MINOR and tag.abi == "abi3")


def wanted_on(package: dict[str, Any]) -> list[tuple[str, str]]:
    """The platforms on which a package is installed."""
    if "marker" not in package:
        return list(PLATFORMS)
    marker = Marker(package["marker"])
    python = {"python_version": f"3.{MINOR}", "python_full_version": f"3.{MINOR}.9", "implementation_name": "cpython"}
    python |= {"platform_python_implementation": "CPython", "os_name": "posix"}
    return [one for one in PLATFORMS if marker.evaluate({**python, "sys_platform": one[0], "platform_machine": one[1]})]


def digests(package: dict[str, Any]) -> list[str]:
    """SHA-256 of the files of a package that a supported machine takes, sorted."""
    found, missing = set(), set(wanted_on(package))
    for wheel in package.get("wheels", []):
        platforms = [tag.platform for tag in parse_wheel_filename(name_of(wheel))[3] if fits(tag)]
        served = {one for one in wanted_on(package) for platform in platforms if re.fullmatch(PLATFORMS[one], platform)}
        if served:
            found.add(wheel["hashes"]["sha256"])
            missing -= served
    if missing and "sdist" in package:
        found.add(package["sdist"]["hashes"]["sha256"])
    return sorted(found)


def name_of(file: dict[str, Any]) -> str:
    """A file's name; some resolvers give its address alone."""
    return str(file.get("name") or file["url"].rpartition("/")[2].partition("#")[0])


def render(content: dict[str, Any]) -> str:
    """requirements.lock."""
    lines = [HEAD]
    for package in sorted(content["packages"], key=lambda one: one["name"]):
        if not wanted_on(package):
            continue
        marker = f" ; {package['marker']}" if "marker" in package else ""
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests(package))
        lines.append(f"{package['name']}=={package['version']}{marker}{hashes}\n")
    return "".join(lines)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(render(tomllib.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
