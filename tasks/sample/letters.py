"""Letters: a custom task, a YAML file and CSV files; is the mood of the writer glad or sour?"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tasks.sample.benchmark_rows import RowGenerator
from tasks.sample.mnli import GENRES
from tasks.sample.word_bank import WordSplit

MOODS = ("glad", "sour")
YAML = """\
# A task of your own (docs/add-a-benchmark.md). To run it, name it in params.yaml:
#   finetune: {tasks: [tasks/letters.yaml]}
title: Letters
head: classes
train: letters/train.csv
dev: letters/dev.csv
columns: {first: letter, label: mood}
"""


def write_letters(generator: RowGenerator, folder: Path) -> None:
    """letters.yaml, letters/train.csv and letters/dev.csv with the columns id, letter, mood."""
    (folder / "letters").mkdir(parents=True, exist_ok=True)
    (folder / "letters.yaml").write_bytes(YAML.encode())
    for split in ("train", "dev"):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("id", "letter", "mood"))
        for number, row in enumerate(generator.make(split, lambda part: _letter(generator, part))):
            writer.writerow((f"{split}-{number}", *row))
        (folder / "letters" / f"{split}.csv").write_bytes(text.getvalue().encode())


def _letter(generator: RowGenerator, part: WordSplit) -> tuple[str, str]:
    scene = generator.scene(part, generator.rng.pick(MOODS))
    return generator.slots(scene, part).fill(generator.rng.pick(GENRES["letters"].strip().splitlines())), scene.mood
