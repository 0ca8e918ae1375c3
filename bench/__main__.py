"""`make bench`: every benchmark, one after another; results under build/bench/ and as a table."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import pretrain
from model.files import write_json

OUT = Path("build/bench")


def main() -> int:
    """Run all, write {name, ours, peer, ratio, unit, detail} each, and print the table."""
    print(f"{'name':<28}{'ours':>12}{'peer':>12}{'ratio':>8}  unit")
    for result in pretrain.results():
        write_json(OUT / f"{result['name']}.json", result)
        speeds = f"{result['ours']:>12,.0f}{result['peer']:>12,.0f}{result['ratio']:>8.2f}"
        print(f"{result['name']:<28}{speeds}  {result['unit']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
