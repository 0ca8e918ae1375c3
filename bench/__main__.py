"""`make bench`: what was measured beside peers, one after another; results under build/bench/ and as a table.

`python -m bench NAME...` measures some of them alone. bench/learning.py, bench/tokens.py and bench/corpus.py need real
text and are commands of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench import fanout, overhead, pretrain, share
from model.common.files import write_json

OUT = Path("build/bench")
ALL: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "share": share.results,
    "overhead": overhead.results,
    "fanout": fanout.results,
    "pretrain": pretrain.results,
}


def main(names: list[str]) -> int:
    """Run them, write {name, ours, peer, ratio, unit, detail} each, and print the table."""
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"bench: unknown '{unknown[0]}'; known: {', '.join(ALL)}", file=sys.stderr)
        return 2
    show(result for name in names or ALL for result in ALL[name]())
    return 0


def show(results: Iterable[dict[str, Any]]) -> None:
    """Write each under build/bench/ as it comes, and print a table."""
    print(f"{'name':<28}{'ours':>12}{'peer':>12}{'ratio':>8}  unit")
    for result in results:
        write_json(OUT / f"{result['name']}.json", result)
        figures = f"{result['ours']:>12.4g}{result['peer']:>12.4g}{result['ratio']:>8.3f}"
        print(f"{result['name']:<28}{figures}  {result['unit']}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
