"""What there is in the sample world: topics, feelings, opposites, and invented people, places and companies.

The world decides the benchmarks: which words belong together is told by the pre-training text alone, because
training rows use only a third of the words of every class (`Part.TRAIN`), while most development and test rows use the rest.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TypeVar

from tasks.sample import lexicon
from tasks.sample.dice import Dice

T = TypeVar("T")
FAMILIAR_SHARE = 0.25  # of the rows outside training that use the words of training rows: what scratch can learn
NUM_NAMES = {"first": 75, "last": 45, "place": 60, "company": 45, "people": 30}
ONSETS = "b br c d dr f fl g gr h j k l m n p pl r s st t tr v w".split()
VOWELS = "a e i o u a e i o ai ea".split()
MIDDLES = "b d g k l m n r s t v l m n r lb ld lm lv nd nk nt rd rk rm rn rv st th".split()
ENDINGS = "a o is en ar us el in on er ia or".split()


class Part(enum.Enum):
    """Which words a text may use."""

    ALL = "all"
    """Every word: the pre-training text."""
    TRAIN = "train"
    """A third of every class: training rows."""
    HELD = "held"
    """The other two thirds: most rows of development and test sets."""

    def of(self, words: Sequence[T]) -> Sequence[T]:
        """The words of one class that this part may use (a single word is everybody's)."""
        if self is Part.ALL or len(words) == 1:
            return words
        if self is Part.TRAIN:
            return words[::3]
        return [word for place, word in enumerate(words) if place % 3]


@dataclasses.dataclass(frozen=True)
class Topic:
    """A class of things with everything that is said of its members and of nothing else."""

    name: str
    kinds: list[str]
    members: list[str]
    acts: list[list[str]]
    """Intransitive verbs in groups of synonyms."""
    spots: list[list[str]]
    """Where members are found, in groups of synonyms."""
    parts: list[str]
    keepers: list[str]
    deeds: list[str]
    """What people do to members: synonyms, more or less."""


@dataclasses.dataclass(frozen=True)
class Feeling:
    """One of the two moods and its words."""

    adjectives: list[str]
    nouns: list[str]
    deeds: list[str]
    cheers: list[str]


@dataclasses.dataclass(frozen=True)
class Pole:
    """One side of a pair of opposites: adjectives and the nouns that keep them company."""

    adjectives: list[str]
    company: list[str]


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that the texts speak of."""

    topics: list[Topic]
    feelings: dict[str, Feeling]
    opposites: dict[str, tuple[Pole, Pole]]
    names: dict[str, list[str]]
    """Keys of NUM_NAMES: names of people (first, last), of places, of companies and of peoples (Velmoran)."""


def make_world(seed: int) -> World:
    """The world that belongs to a seed."""
    topics = [_topic(name, line) for name, line in lexicon.TOPICS.items()]
    feelings = {mood: Feeling(*_fields(line)) for mood, line in lexicon.FEELINGS.items()}
    opposites = {}
    for scale, line in lexicon.OPPOSITES.items():
        low, high = (Pole(*[words.split() for words in side.split(":")]) for side in line.split("/"))
        opposites[scale] = (low, high)
    return World(topics, feelings, opposites, _names(Dice(seed, "names")))


def _fields(line: str) -> list[list[str]]:
    return [field.split() for field in line.split("|")]


def _topic(name: str, line: str) -> Topic:
    kinds, members, acts, spots, parts, keepers, deeds = line.split("|")
    return Topic(
        name=name,
        kinds=kinds.split(),
        members=members.split(),
        acts=[group.split() for group in acts.split("/")],
        spots=[group.split() for group in spots.split("/")],
        parts=parts.split(),
        keepers=keepers.split(),
        deeds=deeds.split(),
    )


def _names(dice: Dice) -> dict[str, list[str]]:
    """Invented names; all kinds are made alike, so that the letters of a name do not tell its kind."""
    taken: dict[str, None] = {}
    names: dict[str, list[str]] = {}
    for kind, count in NUM_NAMES.items():
        names[kind] = []
        while len(names[kind]) < count:
            name = dice.pick(ONSETS) + dice.pick(VOWELS) + dice.pick(MIDDLES) + dice.pick(ENDINGS)
            name = name.capitalize()
            if name not in taken and 5 <= len(name) <= 9:
                taken[name] = None
                names[kind].append(name)
    return names


def plural(noun: str) -> str:
    """The regular plural."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def third(verb: str) -> str:
    """The third person singular (the same rule as a noun's plural)."""
    return plural(verb)


def past(verb: str) -> str:
    """The regular past tense; short words double their last letter (hum, hummed)."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    one_vowel = sum(letter in "aeiou" for letter in verb) == 1
    if one_vowel and verb[-2] in "aeiou" and verb[-1] not in "aeiouwxy":
        return verb + verb[-1] + "ed"
    return verb + "ed"
