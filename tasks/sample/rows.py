"""What the writers of benchmark files share: which words a row may use, pairs of tellings, and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tasks.sample.dice import Dice
from tasks.sample.settings import SampleSettings
from tasks.sample.text import Scene, Slots, make_scene, next_fact
from tasks.sample.world import FAMILIAR_SHARE, Part, Topic, World

Row = TypeVar("Row")
# Training rows of a benchmark as a multiple of `num_train_rows`; the order of sizes follows the originals'.
SCALE = {"MNLI": 1.5, "SQuAD": 1.0, "NER": 0.7, "WNLI": 1.0, "RTE": 1.0}


@dataclasses.dataclass
class Source:
    """Where the rows of one benchmark come from."""

    world: World
    dice: Dice
    settings: SampleSettings
    name: str

    def num_rows(self, split: str) -> int:
        """Rows of a split ("train", or a name that begins with "dev" or "test")."""
        if split == "train":
            return round(self.settings.num_train_rows * SCALE.get(self.name, 1.0))
        return self.settings.num_dev_rows if split.startswith("dev") else self.settings.num_test_rows

    def part(self, split: str) -> Part:
        """The words of a new row: those of training in training, and in a quarter of the other rows."""
        return Part.TRAIN if split == "train" or self.dice.chance(FAMILIAR_SHARE) else Part.HELD

    def make(self, split: str, make_row: Callable[[Part], Row], num_rows: int | None = None) -> list[Row]:
        """The rows of a split."""
        return [make_row(self.part(split)) for _ in range(num_rows or self.num_rows(split))]

    def scene(self, part: Part, topic: Topic | None = None) -> Scene:
        """A new scene."""
        return make_scene(self.world, self.dice, part, topic)

    def slots(self, scene: Scene, part: Part) -> Slots:
        """Slots filled from a scene."""
        return Slots(self.world, self.dice, scene, part)

    def elsewhere(self, scene: Scene, part: Part) -> Scene:
        """The same people and places in a scene of another topic."""
        topic = self.dice.pick([topic for topic in self.world.topics if topic is not scene.topic])
        hero = self.dice.pick(part.of(topic.members)) if scene.hero else None
        other = dataclasses.replace(scene, topic=topic, hero=hero)
        next_fact(self.world, self.dice, other)
        return other

    def two(self, patterns: Sequence[str]) -> tuple[str, str]:
        """Two different patterns."""
        first, second = self.dice.sample(patterns, 2)
        return first, second


def write_table(
    path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[object]], *, mark: bool = False
) -> None:
    """A tab-separated file without quoting, as GLUE's are; `mark` puts a byte order mark in front."""
    lines = ["\t".join(header)] if header else []
    lines += ["\t".join(str(cell) for cell in row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(("\ufeff" if mark else "").encode() + "".join(line + "\n" for line in lines).encode())


def spaced(sentence: str) -> str:
    """Punctuation parted from words by spaces, as in SST-2 and MRPC."""
    for sign in ".,?":
        sentence = sentence.replace(sign, f" {sign}")
    return sentence
