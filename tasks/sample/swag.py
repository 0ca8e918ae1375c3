"""SWAG: a sentence, the opening of the next one, and four endings of which one goes on."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tasks.sample.phrases import ACTS_PAST, DEEDS, SAID_OF
from tasks.sample.rows import KINDS, Source
from tasks.sample.world import Part

OPENINGS = ("{First} hears that", "The crowd is told that", "Then someone says that", "It is known that")
HEADER = [
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    *(f"ending{n}" for n in range(4)),
    "label",
]


def write_swag(source: Source, folder: Path) -> None:
    """Comma-separated with quoting where needed; the test file has no label."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train"), ("dev", "val"), ("test", "test")):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        last = -1 if split == "test" else None
        writer.writerow(HEADER[:last])
        for index, row in enumerate(source.make(split, lambda part: _row(source, part))):
            writer.writerow([index, *row][:last])
        (folder / f"{name}.csv").write_bytes(text.getvalue().encode())


def _row(source: Source, part: Part) -> list[object]:
    """The endings say the same of four names, and it fits the kind of one of them."""
    dice, slots = source.dice, source.slots(source.scene(part), part)
    sentence, opening = slots.fill(dice.pick(ACTS_PAST + DEEDS)), slots.fill(dice.pick(OPENINGS))
    kind, right = dice.pick(KINDS), dice.below(4)
    said = slots.phrase(dice.pick(SAID_OF[kind]))
    endings = [f"{source.name_pair(kind, part)[place != right]} {said}." for place in range(4)]
    video = f"anetv_{dice.between(10**6, 10**7)}"
    return [video, dice.between(0, 20_000), f"{sentence} {opening}", sentence, opening, "gold", *endings, right]
