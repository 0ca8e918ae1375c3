"""Prose from the world: a scene says what a passage is about, slots are filled from it, and facts are told twice."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from tasks.sample import lexicon, phrases
from tasks.sample.dice import Dice
from tasks.sample.world import Part, Topic, World, past, plural, third

COLOURS, MONTHS = lexicon.COLOURS.split(), lexicon.MONTHS.split()
NUMBERS, DAYS = lexicon.NUMBERS.split(), lexicon.DAYS.split()
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
    """What a passage is about. All its sentences share the topic, the mood, the poles and the people."""

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


def make_scene(world: World, dice: Dice, part: Part = Part.ALL, topic: Topic | None = None) -> Scene:
    """A scene with people and places that `part` allows; one hero in two scenes out of three."""
    names = {kind: part.of(words) for kind, words in world.names.items()}
    topic = topic or dice.pick(world.topics)
    scene = Scene(
        topic=topic,
        mood=dice.pick(MOODS),
        people=list(zip(dice.sample(names["first"], 3), dice.sample(names["last"], 3))),
        places=dice.sample(names["place"], 2),
        companies=dice.sample(names["company"], 2),
        peoples=dice.sample(names["people"], 2),
        poles={scale: dice.below(2) for scale in world.opposites},
        hero=dice.pick(part.of(topic.members)) if dice.chance(0.67) else None,
    )
    next_fact(world, dice, scene)
    return scene


def next_fact(world: World, dice: Dice, scene: Scene) -> None:
    """Turn to other acts, another spot and another scale of the same scene."""
    scene.act_group = dice.below(len(scene.topic.acts))
    scene.spot_group = dice.below(len(scene.topic.spots))
    scene.scale = dice.pick(list(world.opposites))


class Slots:
    """Fills the slots of sentence patterns for one scene, with the words that `part` allows."""

    def __init__(self, world: World, dice: Dice, scene: Scene, part: Part = Part.ALL) -> None:
        self.world, self.dice, self.scene, self.part = world, dice, scene, part
        self._used: dict[str, None] = {}
        self._told: dict[str, str] = {}
        self._given: dict[str, str] = {}

    def tell(self, **words: str) -> None:
        """Words for slots of their own, in every pattern from now on."""
        self._told |= words

    def fill(self, pattern: str, **given: str) -> str:
        """The pattern with its slots filled (`given` ones as told), articles agreed and its first letter capital."""
        return capital(self.phrase(pattern, **given))

    def phrase(self, pattern: str, **given: str) -> str:
        """The same for a part of a sentence, its first letter as it is."""
        self._used = {}
        self._given = {**self._told, **given}
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
            first, last = self.dice.pick(fresh)
            self._used[first] = self._used[last] = None
            return f"{first} {last}"
        words = self._vocabulary()[base]
        if base == "member" and self.scene.hero and self.scene.hero not in self._used:
            words = [self.scene.hero]
        word = self.dice.pick([word for word in words if word not in self._used] or words)
        self._used[word] = None
        return word

    def _vocabulary(self) -> dict[str, Sequence[str]]:
        """For each kind of slot the words that may fill it (names were drawn with the scene)."""
        scene, topic, feeling = self.scene, self.scene.topic, self.world.feelings[self.scene.mood]
        pole = self.world.opposites[scene.scale][scene.poles[scene.scale]]
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
            "near": phrases.NEARNESS,
            "time": phrases.TIMES,
        }


def agree(text: str) -> str:
    """`a` before a vowel becomes `an`."""
    return re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)


def capital(sentence: str) -> str:
    """The sentence with a capital for its first letter."""
    return sentence[0].upper() + sentence[1:]


def passage(world: World, dice: Dice, scene: Scene, num_sentences: int, *, story: bool) -> list[str]:
    """About `num_sentences` sentences on one scene; each fact is told and told again with synonyms.

    A story speaks in the past and of feelings; an article in the present, of kinds and looks.
    """
    slots = Slots(world, dice, scene)
    tellings = (phrases.ACTS_PRESENT, phrases.ACTS_PAST, phrases.ACTS_PAST, phrases.DEEDS)
    asides = (
        phrases.LOOKS,
        phrases.KINDS,
        phrases.NAMES,
        # As often as makes moods, looks and the kinds of names about equally frequent: how often a word occurs must
        # not tell its class, or the text with its words shuffled would tell it too.
        *[phrases.POLES] * 3,
        *[phrases.FEELINGS[scene.mood]] * 3,
        phrases.TOLD["person"],
        phrases.TOLD["place"],
        *[phrases.TOLD["company"]] * 3,
    )
    sentences: list[str] = []
    while len(sentences) < num_sentences:
        next_fact(world, dice, scene)
        first, second = dice.sample(dice.pick(tellings), 2)
        fact = [slots.fill(first), slots.fill(second)]
        if dice.chance(0.2 if story else 0.1):
            question, answer = dice.pick(phrases.QUESTIONS).split("|")
            fact = [slots.fill(question), slots.fill(answer)]
        sentences += fact
        for _ in range(dice.between(1, 2)):
            sentences.append(slots.fill(dice.pick(dice.pick(asides))))
    return sentences
