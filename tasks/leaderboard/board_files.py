"""The files of the board of all recorded runs: board.html, board.csv and board.json."""

from __future__ import annotations

import os
import time
from pathlib import Path

from model.common.errors import UserError
from model.common.files import write_bytes, write_json
from tasks.leaderboard import history, schema
from tasks.leaderboard.csv_table import csv_table
from tasks.leaderboard.page import render_combined


def write_board(home: Path, reference: str = "") -> schema.CombinedBoard:
    """Write the files of the board of the runs recorded in `home`, and return the board.

    Raises:
        UserError: nothing is recorded, a later version wrote a record, or no system is called `reference`.
    """
    records = history.read_records(home)
    if not records:
        raise UserError(f"{os.path.relpath(home)}: no run is recorded yet; `cloze run` records one when it completes")
    combined = history.combined_board(records, home, reference)
    write_json(home / "board.json", combined.content())
    pages = {record.digest for record in records if (home / record.digest / history.PAGE).is_file()}
    write_bytes(home / "board.csv", csv_table(combined).encode())
    write_bytes(home / "board.html", render_combined(combined, pages).encode())
    return combined


def is_outdated(home: Path) -> bool:
    """Check whether runs were recorded after board.html was written, or the clock was set back since."""
    times = [path.stat().st_mtime_ns for path in home.glob("*/record.json")]
    page = home / "board.html"
    return bool(times) and not (page.exists() and max(times) <= page.stat().st_mtime_ns <= time.time_ns())
