"""SWAG: a sentence, the opening of the next one, and four endings of which one goes on."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tasks.sample.phrases import ACTS_PAST, DEEDS
from tasks.sample.rows import Source
from tasks.sample.world import Part

OPENINGS = ("{First}", "The crowd", "Then someone", "A {people} man", "The others", "{First2}")
ENDINGS = """
{did} the {kind} {near} the {spot}.
walks to the {spot} where the {kind} {acts}.
sees the {part} of a {member}.
takes the {member} to a {keeper}.
{did} another {member}, and it {acts}.
hears that {kinds} {act} {near} a {spot}.
""".strip().splitlines()
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
    dice, scene = source.dice, source.scene(part)
    slots = source.slots(scene, part)
    sentence, opening = slots.fill(dice.pick(ACTS_PAST + DEEDS)), slots.fill(dice.pick(OPENINGS))
    right = dice.below(4)
    endings = []
    for place in range(4):
        told = slots if place == right else source.slots(source.elsewhere(scene, part), part)
        ending = told.fill(dice.pick(ENDINGS))
        endings.append(ending[0].lower() + ending[1:])
    video = f"anetv_{dice.between(10**6, 10**7)}"
    return [
        video,
        dice.between(0, 20_000),
        f"{sentence} {opening}",
        sentence,
        opening,
        "gold",
        *endings,
        right,
    ]
