"""Shared code of the benchmark writers: settings, word splits and table formats."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pydantic

from model.common.bounds import Seed
from model.common.config_base import Settings
from tasks.sample.passages import Scene, make_scene
from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import FAMILIAR_SHARE, PATTERNS, WordBank, WordSplit


class SampleSettings(Settings):
    """Sizes of the synthetic dataset; equal settings give identical files on every machine."""

    seed: Seed = 2018
    """Random seed; it changes all names, texts and rows."""
    num_articles: int = pydantic.Field(default=1600, ge=20, le=20_000)
    """Number of encyclopedia articles in the dump, in addition to redirects, talk and template pages."""
    num_books: int = pydantic.Field(default=24, ge=1, le=1000)
    """Number of plain-text books, with twelve chapters each."""
    num_train_rows: int = pydantic.Field(default=600, ge=16, le=100_000)
    """Number of training rows of a benchmark, multiplied by its factor in SCALE."""
    num_dev_rows: int = pydantic.Field(default=400, ge=16, le=100_000)
    """Number of rows in each development set (MNLI has two sets of half the size)."""
    num_test_rows: int = pydantic.Field(default=60, ge=4, le=100_000)
    """Number of rows in each test set, without labels if the original has none."""


Row = TypeVar("Row")
SPLITS = ("train", "dev", "test")
KINDS = tuple(PATTERNS["said_of"])
# Training rows as a multiple of `num_train_rows`; keeps the originals' order of sizes.
SCALE = {"MNLI": 1.5, "NER": 0.7}


@dataclasses.dataclass
class RowGenerator:
    """Generates the rows of one benchmark."""

    bank: WordBank
    rng: RandomSource
    settings: SampleSettings
    name: str

    def num_rows(self, split: str) -> int:
        """Return the number of rows of a split."""
        if split == "train":
            return round(self.settings.num_train_rows * SCALE.get(self.name, 1.0))
        return self.settings.num_dev_rows if split == "dev" else self.settings.num_test_rows

    def part(self, split: str) -> WordSplit:
        """Choose the words of a new row: training words for training rows and for a quarter of the other rows."""
        return WordSplit.TRAIN if split == "train" or self.rng.chance(FAMILIAR_SHARE) else WordSplit.HELD

    def make(
        self, split: str, make_row: Callable[[RowGenerator, WordSplit], Row], num_rows: int | None = None
    ) -> list[Row]:
        """Generate the rows of a split."""
        return [make_row(self, self.part(split)) for _ in range(num_rows or self.num_rows(split))]

    def scene(self, part: WordSplit, mood: str | None = None) -> Scene:
        """Create a scene, optionally with a given mood."""
        scene = make_scene(self.bank, self.rng, part)
        return dataclasses.replace(scene, mood=mood) if mood else scene

    def name_pair(self, kind: str, part: WordSplit) -> tuple[str, str]:
        """Return a name of the given kind ("person", "place", "company") and a name of another kind.

        Persons have only a first name, so that all names have one word.
        """
        other = self.rng.pick([other for other in KINDS if other != kind])
        names = (self.bank.names["first" if kind == "person" else kind] for kind in (kind, other))
        one, two = (self.rng.pick(part.of(choice)) for choice in names)
        return one, two


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, and create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def write_table(path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[object]], mark: str = "") -> None:
    """Write a tab-separated file without quoting, as in GLUE; `mark` precedes the header."""
    table: list[Sequence[object]] = [header, *rows] if header else list(rows)
    write_text(path, mark + "".join("\t".join(map(str, row)) + "\n" for row in table))


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a comma-separated file with quoting where needed; the first row is the header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def spaced(sentence: str) -> str:
    """Separate punctuation from words by spaces, as in SST-2 and MRPC."""
    for sign in ".,?":
        sentence = sentence.replace(sign, f" {sign}")
    return sentence
