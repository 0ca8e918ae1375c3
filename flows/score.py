"""`cloze score`: predictions against gold answers, by the official rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from model.benchmarks.scoring import score_files
from model.benchmarks.table import find


def print_scores(task: str, gold: Path, predictions: Path, na_prob: Path | None, na_threshold: float | None) -> None:
    """Print the scores as JSON; what the scores leave out is said on standard error."""
    report = score_files(find(task), gold, predictions, na_prob, na_threshold)
    if report["num_missing"]:
        print(
            f"cloze: {predictions}: no prediction for {report['num_missing']} of {report['num_rows']} questions; "
            "each counts as 0, as in SQuAD's script",
            file=sys.stderr,
        )
    print(json.dumps(report, indent=1, ensure_ascii=False))
