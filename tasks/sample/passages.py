"""Passages of text: a scene sets the subject, slots are filled from it, and each fact is stated twice."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from tasks.sample import templates, word_bank
from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import Topic, WordBank, WordSplit, past, plural, third

COLOURS, MONTHS = word_bank.COLOURS.split(), word_bank.MONTHS.split()
NUMBERS, DAYS = word_bank.NUMBERS.split(), word_bank.DAYS.split()
YEARS = [str(year) for year in range(1820, 2010, 10)]
MOODS = ("glad", "sour")
# A slot that is a form of another slot's word.
FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "members": ("member", plural),
    "kinds": ("kind", plural),
    "spots": ("spot", plural),
    "acts": ("act", third),
    "acted": ("act", past),
    "did": ("do", past),
    "felt": ("feel_deed", past),
    "cheered": ("cheer", past),
}


@dataclasses.dataclass
class Scene:
    """Subject of a passage. All its sentences share the topic, the mood, the poles and the people."""

    topic: Topic
    mood: str
    people: list[tuple[str, str]]
    places: list[str]
    companies: list[str]
    peoples: list[str]
    poles: dict[str, int]
    hero: str | None = None
    """The member that the passage is about, or None when any member may act."""
    act_group: int = 0
    spot_group: int = 0
    scale: str = "size"


def make_scene(bank: WordBank, rng: RandomSource, part: WordSplit = WordSplit.ALL, topic: Topic | None = None) -> Scene:
    """A scene with people and places that `part` allows; one hero in two scenes out of three."""
    names = {kind: part.of(words) for kind, words in bank.names.items()}
    topic = topic or rng.pick(bank.topics)
    scene = Scene(
        topic=topic,
        mood=rng.pick(MOODS),
        people=list(zip(rng.sample(names["first"], 3), rng.sample(names["last"], 3))),
        places=rng.sample(names["place"], 2),
        companies=rng.sample(names["company"], 2),
        peoples=rng.sample(names["people"], 2),
        poles={scale: rng.below(2) for scale in bank.opposites},
        hero=rng.pick(part.of(topic.members)) if rng.chance(0.67) else None,
    )
    next_fact(bank, rng, scene)
    return scene


def next_fact(bank: WordBank, rng: RandomSource, scene: Scene) -> None:
    """Turn to other acts, another spot and another scale of the same scene."""
    scene.act_group = rng.below(len(scene.topic.acts))
    scene.spot_group = rng.below(len(scene.topic.spots))
    scene.scale = rng.pick(list(bank.opposites))


class Slots:
    """Fills the slots of sentence patterns for one scene, with the words that `part` allows."""

    def __init__(self, bank: WordBank, rng: RandomSource, scene: Scene, part: WordSplit = WordSplit.ALL) -> None:
        self.bank, self.rng, self.scene, self.part = bank, rng, scene, part
        self._used: dict[str, None] = {}
        self._fixed: dict[str, str] = {}
        self._given: dict[str, str] = {}

    def set_words(self, **words: str) -> None:
        """Set the words of additional slots for all later patterns."""
        self._fixed |= words

    def fill(self, pattern: str, **given: str) -> str:
        """The pattern with its slots filled (`given` ones with the given words), articles agreed and its first letter capital."""
        return capital(self.phrase(pattern, **given))

    def phrase(self, pattern: str, **given: str) -> str:
        """The same for a part of a sentence, its first letter as it is."""
        self._used = {}
        self._given = {**self._fixed, **given}
        return agree(pattern.format_map(self))

    def __getitem__(self, slot: str) -> str:
        if slot in self._given:
            return self._given[slot]
        name = slot.rstrip("0123456789")
        base, form = FORMS.get(name.lower(), (name.lower(), str))
        word = form(self._word(base))
        return word[0].upper() + word[1:] if name[0].isupper() else word

    def _word(self, base: str) -> str:
        if base == "person":
            fresh = [pair for pair in self.scene.people if pair[0] not in self._used] or self.scene.people
            first, last = self.rng.pick(fresh)
            self._used[first] = self._used[last] = None
            return f"{first} {last}"
        words = self._vocabulary()[base]
        if base == "member" and self.scene.hero and self.scene.hero not in self._used:
            words = [self.scene.hero]
        word = self.rng.pick([word for word in words if word not in self._used] or words)
        self._used[word] = None
        return word

    def _vocabulary(self) -> dict[str, Sequence[str]]:
        """For each kind of slot the words that may fill it (names were drawn with the scene)."""
        scene, topic, feeling = self.scene, self.scene.topic, self.bank.feelings[self.scene.mood]
        pole = self.bank.opposites[scene.scale][scene.poles[scene.scale]]
        allowed = self.part.of
        return {
            "kind": allowed(topic.kinds),
            "member": allowed(topic.members),
            "act": allowed(topic.acts[scene.act_group]),
            "spot": allowed(topic.spots[scene.spot_group]),
            "part": allowed(topic.parts),
            "keeper": allowed(topic.keepers),
            "do": allowed(topic.deeds),
            "good": allowed(feeling.adjectives),
            "feel": allowed(feeling.nouns),
            "feel_deed": allowed(feeling.deeds),
            "cheer": allowed(feeling.cheers),
            "pole": allowed(pole.adjectives),
            "thing": allowed(pole.company),
            "colour": allowed(COLOURS),
            "number": allowed(NUMBERS),
            "month": allowed(MONTHS),
            "day": allowed(DAYS),
            "year": YEARS,
            "first": [first for first, _ in scene.people],
            "last": [last for _, last in scene.people],
            "place": scene.places,
            "company": scene.companies,
            "people": scene.peoples,
            "near": templates.NEARNESS,
            "time": templates.TIMES,
        }


def agree(text: str) -> str:
    """`a` before a vowel becomes `an`."""
    return re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)


def capital(sentence: str) -> str:
    """The sentence with a capital for its first letter."""
    return sentence[0].upper() + sentence[1:]


def passage(bank: WordBank, rng: RandomSource, scene: Scene, num_sentences: int, *, story: bool) -> list[str]:
    """About `num_sentences` sentences on one scene; each fact is stated twice, with synonyms.

    A story speaks in the past and of feelings; an article in the present, of kinds and looks.
    """
    slots = Slots(bank, rng, scene)
    tellings = (templates.ACTS_PRESENT, templates.ACTS_PAST, templates.ACTS_PAST, templates.DEEDS)
    asides = (
        templates.LOOKS,
        templates.KINDS,
        templates.NAMES,
        # As often as makes moods, looks and the kinds of names about equally frequent: how often a word occurs must
        # not tell its class, or the text with its words shuffled would tell it too.
        *[templates.POLES] * 3,
        *[templates.FEELINGS[scene.mood]] * 3,
        templates.TOLD["person"],
        templates.TOLD["place"],
        *[templates.TOLD["company"]] * 3,
    )
    sentences: list[str] = []
    while len(sentences) < num_sentences:
        next_fact(bank, rng, scene)
        first, second = rng.sample(rng.pick(tellings), 2)
        fact = [slots.fill(first), slots.fill(second)]
        if rng.chance(0.2 if story else 0.1):
            question, answer = rng.pick(templates.QUESTIONS).split("|")
            fact = [slots.fill(question), slots.fill(answer)]
        sentences += fact
        for _ in range(rng.between(1, 2)):
            sentences.append(slots.fill(rng.pick(rng.pick(asides))))
    return sentences
