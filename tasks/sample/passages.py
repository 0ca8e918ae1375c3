"""Passages of text: a scene sets the subject, slots are filled from it, and each fact is stated twice."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import PATTERNS, WORDS, Pole, Topic, WordBank, WordSplit, past, plural

YEARS = [str(year) for year in range(1820, 2010, 10)]
# A slot that is a form of another slot's word.
FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "members": ("member", plural),
    "kinds": ("kind", plural),
    "spots": ("spot", plural),
    "acts": ("act", plural),
    "acted": ("act", past),
    "did": ("do", past),
    "felt": ("feel_deed", past),
    "cheered": ("cheer", past),
}
# What can be said of a name of each kind, as sentences.
TOLD = {
    kind: [f"{{{subject}}} {said}." for said in PATTERNS["said_of"][kind]]
    for kind, subject in (("person", "First"), ("place", "Place"), ("company", "Company"))
}


@dataclasses.dataclass
class Scene:
    """Subject of a passage. All its sentences share the topic, the mood, the poles and the people."""

    bank: WordBank
    rng: RandomSource
    part: WordSplit
    """The words that its sentences may use."""
    topic: Topic
    mood: str
    people: list[tuple[str, str]]
    places: list[str]
    companies: list[str]
    peoples: list[str]
    poles: dict[str, int]
    hero: str | None
    """The member that the passage is about, or None when any member may act."""
    act_group: int = 0
    spot_group: int = 0
    scale: str = "size"

    def next_fact(self) -> None:
        """Turn to other acts, another spot and another scale."""
        self.act_group = self.rng.below(len(self.topic.acts))
        self.spot_group = self.rng.below(len(self.topic.spots))
        self.scale = self.rng.pick(list(self.bank.opposites))

    def say(self, patterns: Sequence[str], **given: str) -> str:
        """One of the patterns as a sentence; see `fill`."""
        return self.fill(self.rng.pick(patterns), **given)

    def fill(self, pattern: str, **given: str) -> str:
        """The pattern with its slots filled (`given` ones with the given words), articles agreed and its first letter capital."""
        return capital(self.phrase(pattern, **given))

    def phrase(self, pattern: str, **given: str) -> str:
        """The same for a part of a sentence, its first letter as it is."""
        used: set[str] = set()

        def fill_slot(match: re.Match[str]) -> str:
            slot = match[1]
            if slot in given:
                return given[slot]
            name = slot.rstrip("0123456789")
            base, form = FORMS.get(name.lower(), (name.lower(), str))
            word = form(self._word(base, used))
            return capital(word) if name[0].isupper() else word

        text = re.sub(r"{(\w+)}", fill_slot, pattern)
        return re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)

    def adjectives(self, how: str) -> dict[str, str]:
        """Words for {said} and {said2}: adjectives of a mood ("glad", "sour"), or of looks alone ("plain")."""
        words = self._pole.adjectives if how == "plain" else self.bank.feelings[how].adjectives
        return dict(zip(("said", "said2"), self.rng.sample(self.part.of(words), 2)))

    @property
    def _pole(self) -> Pole:
        return self.bank.opposites[self.scale][self.poles[self.scale]]

    def _word(self, base: str, used: set[str]) -> str:
        if base == "person":
            first, last = self.rng.pick([pair for pair in self.people if pair[0] not in used] or self.people)
            used |= {first, last}
            return f"{first} {last}"
        words = self._vocabulary()[base]
        if base == "member" and self.hero and self.hero not in used:
            words = [self.hero]
        word = self.rng.pick([word for word in words if word not in used] or words)
        used.add(word)
        return word

    def _vocabulary(self) -> dict[str, Sequence[str]]:
        """For each kind of slot the words that may fill it."""
        topic, feeling, pole = self.topic, self.bank.feelings[self.mood], self._pole
        words = WORDS["common"] | {
            "kind": topic.kinds,
            "member": topic.members,
            "act": topic.acts[self.act_group],
            "spot": topic.spots[self.spot_group],
            "part": topic.parts,
            "keeper": topic.keepers,
            "do": topic.deeds,
            "good": feeling.adjectives,
            "feel": feeling.nouns,
            "feel_deed": feeling.deeds,
            "cheer": feeling.cheers,
            "pole": pole.adjectives,
            "thing": pole.company,
        }
        return {slot: self.part.of(choice) for slot, choice in words.items()} | {
            # names were drawn with the scene
            "first": [first for first, _ in self.people],
            "last": [last for _, last in self.people],
            "place": self.places,
            "company": self.companies,
            "people": self.peoples,
            "year": YEARS,
            "near": PATTERNS["nearness"],
            "time": PATTERNS["times"],
        }


def make_scene(bank: WordBank, rng: RandomSource, part: WordSplit = WordSplit.ALL, topic: Topic | None = None) -> Scene:
    """A scene with people and places that `part` allows; one hero in two scenes out of three."""
    names = {kind: part.of(words) for kind, words in bank.names.items()}
    topic = topic or rng.pick(bank.topics)
    scene = Scene(
        bank,
        rng,
        part,
        topic,
        mood=rng.pick(list(bank.feelings)),
        people=list(zip(rng.sample(names["first"], 3), rng.sample(names["last"], 3))),
        places=rng.sample(names["place"], 2),
        companies=rng.sample(names["company"], 2),
        peoples=rng.sample(names["people"], 2),
        poles={scale: rng.below(2) for scale in bank.opposites},
        hero=rng.pick(part.of(topic.members)) if rng.chance(0.67) else None,
    )
    scene.next_fact()
    return scene


def capital(sentence: str) -> str:
    """The sentence with a capital for its first letter."""
    return sentence[0].upper() + sentence[1:]


def passage(scene: Scene, num_sentences: int, *, story: bool) -> list[str]:
    """About `num_sentences` sentences on one scene; each fact is stated twice, with synonyms.

    A story asks twice as many questions as an article.
    """
    rng = scene.rng
    tellings = [PATTERNS[name] for name in ("acts_present", "acts_past", "acts_past", "deeds")]
    asides = (
        PATTERNS["looks"],
        PATTERNS["kinds"],
        PATTERNS["names"],
        # As often as makes moods, looks and the kinds of names about equally frequent: how often a word occurs must
        # not tell its class, or the text with its words shuffled would tell it too.
        *[PATTERNS["poles"]] * 3,
        *[PATTERNS["feelings"][scene.mood]] * 3,
        TOLD["person"],
        TOLD["place"],
        *[TOLD["company"]] * 3,
    )
    sentences: list[str] = []
    while len(sentences) < num_sentences:
        scene.next_fact()
        fact = [scene.fill(pattern) for pattern in rng.sample(rng.pick(tellings), 2)]
        if rng.chance(0.2 if story else 0.1):
            fact = [scene.fill(pattern) for pattern in rng.pick(PATTERNS["questions"]).split("|")]
        sentences += fact
        for _ in range(rng.between(1, 2)):
            sentences.append(scene.say(rng.pick(asides)))
    return sentences
