"""Benchmarks of speed and quality against other implementations; no other package imports this one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.common.files import write_json

OUT = Path("build/bench")


def argument_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows a module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m {command}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def comparison(name: str, ours: float, peer: float, ratio: float, unit: str, detail: Any) -> dict[str, Any]:
    """Return the result of one benchmark: the values of both sides in `unit`, their ratio, and details."""
    return {"name": name, "ours": ours, "peer": peer, "ratio": ratio, "unit": unit, "detail": detail}


def show(results: Iterable[dict[str, Any]]) -> None:
    """Write each result to build/bench/ as soon as it is measured, and print a table of all."""
    print(f"{'name':<28}{'ours':>12}{'peer':>12}{'ratio':>8}  unit")
    for result in results:
        write_json(OUT / f"{result['name']}.json", result)
        numbers = f"{result['ours']:>12.4g}{result['peer']:>12.4g}{result['ratio']:>8.3f}"
        print(f"{result['name']:<28}{numbers}  {result['unit']}", flush=True)
