"""SQLite databases of MLflow and Prefect in .cloze/."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from model.common.state_files import set_aside


def set_aside_if_damaged(path: Path) -> bool:
    """Check a database, which may take seconds, and set it aside if it is damaged; its server creates a new one."""
    if not path.is_file():
        return False
    fault = ""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            [answer] = connection.execute("PRAGMA quick_check(1)").fetchone()
            fault = "" if answer == "ok" else str(answer).replace("\n", " ")
    except sqlite3.OperationalError:  # locked, or the disk is full
        return False
    except sqlite3.DatabaseError as error:
        fault = str(error)
    if not fault:
        return False
    set_aside(path, f"damaged database ({fault})")
    for suffix in ("-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    return True
