"""Words and sentence patterns of the synthetic dataset, from assets/words.yaml and assets/patterns.yaml, and invented
names of people, places, companies and peoples.

The pre-training text uses all words. Training rows of the benchmarks use only a third of each class (`WordSplit.TRAIN`),
and most development and test rows use the rest, so the relations between words can be learned only from the text.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tasks.sample.random_source import RandomSource

T = TypeVar("T")
ASSETS = Path(__file__).parent / "assets"
FAMILIAR_SHARE = 0.25  # of dev and test rows use training words, so a model without pre-training can learn them
NUM_NAMES = {"first": 75, "last": 45, "place": 60, "company": 45, "people": 30}


def _load(name: str, split: Callable[[str], list[str]]) -> dict[str, Any]:
    """Load an asset and split all its texts."""

    def split_all(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: split_all(value) for key, value in node.items()}
        return [split_all(item) for item in node] if isinstance(node, list) else split(node)

    return split_all(yaml.safe_load((ASSETS / name).read_text(encoding="utf-8")))


WORDS = _load("words.yaml", str.split)
PATTERNS = _load("patterns.yaml", str.splitlines)


class WordSplit(enum.Enum):
    """The words that a text can use."""

    ALL = "all"
    """All words, for the pre-training text."""
    TRAIN = "train"
    """A third of each class, for training rows."""
    HELD = "held"
    """The other two thirds, for most development and test rows."""

    def of(self, words: Sequence[T]) -> Sequence[T]:
        """Return the words of a class that belong to this split; a single word belongs to every split."""
        if self is WordSplit.ALL or len(words) == 1:
            return words
        if self is WordSplit.TRAIN:
            return words[::3]
        return [word for place, word in enumerate(words) if place % 3]


@dataclasses.dataclass(frozen=True)
class Topic:
    """A class of things, with words that are used only for its members."""

    name: str
    kinds: list[str]
    members: list[str]
    acts: list[list[str]]
    """Intransitive verbs in groups of synonyms."""
    spots: list[list[str]]
    """Places of members, in groups of synonyms."""
    parts: list[str]
    keepers: list[str]
    deeds: list[str]
    """Near-synonymous verbs for actions of people on members."""


@dataclasses.dataclass(frozen=True)
class Feeling:
    """Words of one of the two moods."""

    adjectives: list[str]
    nouns: list[str]
    deeds: list[str]
    cheers: list[str]


@dataclasses.dataclass(frozen=True)
class Pole:
    """One side of a pair of opposites: adjectives, and the nouns that they occur with."""

    adjectives: list[str]
    company: list[str]


@dataclasses.dataclass(frozen=True)
class WordBank:
    """All words with a meaning."""

    topics: list[Topic]
    feelings: dict[str, Feeling]
    opposites: dict[str, list[Pole]]
    names: dict[str, list[str]]
    """Names by kind (a key of NUM_NAMES): people (first, last), places, companies and peoples (Velmoran)."""


def make_word_bank(seed: int) -> WordBank:
    """Create the word bank for a seed."""
    return WordBank(
        topics=[Topic(name, **fields) for name, fields in WORDS["topics"].items()],
        feelings={mood: Feeling(**fields) for mood, fields in WORDS["feelings"].items()},
        opposites={scale: [Pole(**pole) for pole in poles] for scale, poles in WORDS["opposites"].items()},
        names=_names(RandomSource(seed, "names")),
    )


def _names(rng: RandomSource) -> dict[str, list[str]]:
    """Invent names. All kinds use the same syllables, so the letters of a name do not reveal its kind."""
    taken: set[str] = set()
    names: dict[str, list[str]] = {kind: [] for kind in NUM_NAMES}
    for kind, count in NUM_NAMES.items():
        while len(names[kind]) < count:
            name = "".join(rng.pick(syllables) for syllables in WORDS["syllables"].values()).capitalize()
            if name not in taken and 5 <= len(name) <= 9:
                taken.add(name)
                names[kind].append(name)
    return names


def plural(noun: str) -> str:
    """Return the regular plural of a noun; the third person singular of a verb follows the same rule."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def past(verb: str) -> str:
    """Return the regular past tense of a verb; short verbs double their last letter (hum, hummed)."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    one_vowel = sum(letter in "aeiou" for letter in verb) == 1
    if one_vowel and verb[-2] in "aeiou" and verb[-1] not in "aeiouwxy":
        return verb + verb[-1] + "ed"
    return verb + "ed"
