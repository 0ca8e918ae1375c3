"""`python -P held_pretrain.py FILE ACTION RUN.json`: pre-training that is disturbed while it writes a checkpoint.

When the process first opens a file whose path ends in FILE with any partial folder's name in it, it does ACTION: `hold`
creates the file held next to RUN.json and waits until somebody removes it; `limit` lets no file grow beyond 50,000
bytes from then on, as a full disk would.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_BYTES = 50_000


def main(file: str, action: str, path: str) -> int:
    from model.pretrain import __main__

    step, _, name = file.partition("/")
    wanted = re.compile(rf".*/\.{step}\.[^/]*partial/{re.escape(name)}")
    held, seen = Path(path).with_name("held"), list[Any]()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not wanted.fullmatch(str(arguments[0])) or seen:
            return
        seen.append(arguments[0])  # it is opened once more to be synced
        if action == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return
        held.touch()
        while held.exists():
            time.sleep(0.01)

    sys.addaudithook(watch)
    return __main__.main([path])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
