"""Compare the speed of Cloze with other implementations, and write the results to build/bench/.

`make bench` runs the benchmarks of speed below; `python -m bench NAME...` runs some of them. The other modules of this
package need real text or an encoder and are separate commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench import argument_parser, fanout, gate, overhead, pretrain, saving, share, show

ALL: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "share": share.results,
    "overhead": overhead.results,
    "saving": saving.results,
    "fanout": fanout.results,
    "pretrain": pretrain.results,
    "gate": gate.results,
}
SPEED = [name for name in ALL if name != "gate"]  # the gate's is a simulation of its decisions, ten minutes long


def main() -> None:
    """Run the benchmarks that are named on the command line, or those of speed."""
    parser = argument_parser("bench", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)} (default: all but gate)")
    names = parser.parse_args().names
    unknown = [name for name in names if name not in ALL]
    if unknown:
        parser.error(f"unknown benchmark '{unknown[0]}'; choose from {', '.join(ALL)}")
    show(result for name in names or SPEED for result in ALL[name]())


if __name__ == "__main__":
    main()
