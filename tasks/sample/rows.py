"""What the writers of benchmark files share: which words a row may use, pairs of tellings, and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tasks.sample.dice import Dice
from tasks.sample.phrases import SAID_OF
from tasks.sample.settings import SampleSettings
from tasks.sample.text import Scene, Slots, make_scene
from tasks.sample.world import FAMILIAR_SHARE, Part, World

Row = TypeVar("Row")
KINDS = tuple(SAID_OF)
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

    def scene(self, part: Part, mood: str | None = None) -> Scene:
        """A new scene, of a mood if one is given."""
        scene = make_scene(self.world, self.dice, part)
        return dataclasses.replace(scene, mood=mood) if mood else scene

    def name_of(self, kind: str, part: Part) -> str:
        """A name of a kind ("person", "place", "company"); a person's is the first name alone, so no kind has two words."""
        return self.dice.pick(part.of(self.world.names["first" if kind == "person" else kind]))

    def name_pair(self, kind: str, part: Part) -> tuple[str, str]:
        """A name of the kind and one of another kind."""
        other = self.dice.pick([other for other in KINDS if other != kind])
        return self.name_of(kind, part), self.name_of(other, part)

    def slots(self, scene: Scene, part: Part) -> Slots:
        """Slots filled from a scene."""
        return Slots(self.world, self.dice, scene, part)

    def described(self, scene: Scene, part: Part, how: str) -> Slots:
        """Slots with adjectives for {said}: of a mood ("glad", "sour"), or of looks alone ("plain")."""
        slots = self.slots(scene, part)
        if how == "plain":
            words = part.of(self.world.opposites[scene.scale][scene.poles[scene.scale]].adjectives)
        else:
            words = part.of(self.world.feelings[how].adjectives)
        said, said2 = self.dice.sample(words, 2)
        slots.tell(said=said, said2=said2)
        return slots

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
