"""Generate passages of text: fill pattern slots with the words of a scene, and state each fact twice."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import PATTERNS, WORDS, Pole, Topic, WordBank, WordSplit, past, plural

YEARS = [str(year) for year in range(1820, 2010, 10)]
# Slots that are inflected forms of another slot's word.
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
# Statements about each kind of name, as sentence patterns.
TOLD = {
    kind: [f"{{{subject}}} {said}." for said in PATTERNS["said_of"][kind]]
    for kind, subject in (("person", "First"), ("place", "Place"), ("company", "Company"))
}


@dataclasses.dataclass
class Scene:
    """Subject of a passage. All sentences of the passage share its topic, mood, poles and people."""

    bank: WordBank
    rng: RandomSource
    part: WordSplit
    """The words that the sentences can use."""
    topic: Topic
    mood: str
    people: list[tuple[str, str]]
    places: list[str]
    companies: list[str]
    peoples: list[str]
    poles: dict[str, int]
    hero: str | None
    """The member that the passage is about, or None if any member can act."""
    act_group: int = 0
    spot_group: int = 0
    scale: str = "size"

    def next_fact(self) -> None:
        """Choose new acts, a new spot and a new scale."""
        self.act_group = self.rng.below(len(self.topic.acts))
        self.spot_group = self.rng.below(len(self.topic.spots))
        self.scale = self.rng.pick(list(self.bank.opposites))

    def say(self, patterns: Sequence[str], **given: str) -> str:
        """Turn one of the patterns into a sentence; see `fill`."""
        return self.fill(self.rng.pick(patterns), **given)

    def fill(self, pattern: str, **given: str) -> str:
        """Fill the slots of a pattern (first from `given`), choose "a" or "an", and capitalize the first letter."""
        return capital(self.phrase(pattern, **given))

    def phrase(self, pattern: str, **given: str) -> str:
        """Fill a pattern like `fill`, but without capitalizing the first letter."""
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
        """Choose words for {said} and {said2}: adjectives of a mood ("glad", "sour") or of appearance ("plain")."""
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
        """Return the words for each kind of slot."""
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
            # names were chosen with the scene
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
    """Create a scene with the words of `part`; two of three scenes have a hero."""
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
    """Capitalize the first letter of a sentence."""
    return sentence[0].upper() + sentence[1:]


def passage(scene: Scene, num_sentences: int, *, story: bool) -> list[str]:
    """Generate about `num_sentences` sentences about one scene; each fact is stated twice, with synonyms.

    A story asks twice as many questions as an article.
    """
    rng = scene.rng
    tellings = [PATTERNS[name] for name in ("acts_present", "acts_past", "acts_past", "deeds")]
    asides = (
        PATTERNS["looks"],
        PATTERNS["kinds"],
        PATTERNS["names"],
        # These weights make moods, looks and kinds of names about equally frequent. Otherwise, word frequency would
        # reveal a word's class, even in the shuffled text.
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
