"""SQuAD v1.1 and v2.0, SWAG, and CoNLL-2003 (word, part of speech, chunk, and entity in IOB1)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from tasks.sample.benchmark_rows import KINDS, RowGenerator
from tasks.sample.parse_trees import chunk, tag, words_of
from tasks.sample.passages import Slots
from tasks.sample.templates import ACTS_PAST, DEEDS, NAMES, SAID_OF
from tasks.sample.word_bank import WordBank, WordSplit

QUESTIONS_PER_PASSAGE = 3
# Sentences of a passage; a mark in square brackets names the kind of answer that follows, {...} are slots.
FACTS = {
    "person": "The {keeper} <{person}> {did} the {kind} {time}.|<{Person}> {did} the {member} {near} the {spot}.",
    "place": "People saw it {act} in <{place}>.|It {acted} {near} a {spot} of <{place}>.",
    "colour": "The {part} of the {member} is <{colour}>.|Its {part} is <{colour}>, as {kinds} are.",
    "company": "Later <{company}> sold the {kind}.|It was bought by <{company}> for its {part}.",
    "month": "Most {members} {act} in <{month}>.|By <{month}> the {kinds} {act} again.",
    "number": "There were <{number}> {kinds} {near} the {spot}.|The {keeper} {did} <{number}> {members}.",
}
ASKED = {
    "person": "Who {did} the {kind}?|Which man {did} the {member}?",
    "place": "Where did the {kind} {act}?|In which town did it {act}?",
    "colour": "What colour is the {part}?|Which colour does the {member} have?",
    "company": "Which company sold the {kind}?|Which firm got the {member}?",
    "month": "When do {kinds} {act}?|In which month do the {members} {act}?",
    "number": "How many {kinds} were there?|How many {members} did they count?",
}


def write_squad(generator: RowGenerator, folder: Path) -> None:
    """Both versions; dev questions of v1.1 have three answers, impossible ones of v2.0 a plausible answer."""
    folder.mkdir(parents=True, exist_ok=True)
    for version in ("1.1", "2.0"):
        for split in ("train", "dev"):
            articles = _articles(generator, split, version)
            document = {"data": articles, "version": f"v{version}" if version == "2.0" else version}
            text = json.dumps(document, ensure_ascii=False)
            (folder / f"{split}-v{version}.json").write_bytes(text.encode())


def _articles(generator: RowGenerator, split: str, version: str) -> list[dict[str, object]]:
    num_passages = max(1, generator.num_rows(split) // QUESTIONS_PER_PASSAGE)
    passages = generator.make(split, lambda part: _passage(generator, part, split, version), num_passages)
    size = 5
    titles = generator.rng.shuffled(generator.bank.names["place"])
    return [
        {"title": titles[start // size % len(titles)], "paragraphs": passages[start : start + size]}
        for start in range(0, len(passages), size)
    ]


def _passage(generator: RowGenerator, part: WordSplit, split: str, version: str) -> dict[str, object]:
    rng, scene = generator.rng, generator.scene(part)
    slots = generator.slots(scene, part)
    kinds = rng.sample(list(FACTS), QUESTIONS_PER_PASSAGE + 1)
    told, untold = kinds[:QUESTIONS_PER_PASSAGE], kinds[QUESTIONS_PER_PASSAGE]
    context, answers = "", {}
    for kind in told:
        sentence = slots.fill(rng.pick(FACTS[kind].split("|")))
        before, answer, after = _parted(sentence)
        start = len(context) + (1 if context else 0) + len(before)
        context = f"{context} {before}{answer}{after}".strip()
        answers[kind] = {"text": answer, "answer_start": start}
    questions = []
    for kind in told:
        impossible = version == "2.0" and rng.chance(0.45)
        questions.append(
            _question(generator, slots, untold if impossible else kind, answers[kind], split, version, impossible)
        )
    return {"context": context, "qas": questions}


def _parted(sentence: str) -> tuple[str, str, str]:
    before, rest = sentence.split("<")
    answer, after = rest.split(">")
    return before, answer, after


def _question(
    generator: RowGenerator,
    slots: Slots,
    kind: str,
    answer: dict[str, object],
    split: str,
    version: str,
    impossible: bool,
) -> dict[str, object]:
    number = "".join(generator.rng.pick("0123456789abcdef") for _ in range(24))
    copies = [dict(answer) for _ in range(3 if split == "dev" else 1)]
    question: dict[str, object] = {
        "question": slots.fill(generator.rng.pick(ASKED[kind].split("|"))),
        "id": number,
    }
    question["answers"] = [] if impossible else copies
    if version == "2.0":
        question["is_impossible"] = impossible
        if impossible:
            question["plausible_answers"] = copies
    return question


OPENINGS = ("{First} hears that", "The crowd is told that", "Then someone says that", "It is known that")
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


def write_swag(generator: RowGenerator, folder: Path) -> None:
    """Comma-separated with quoting where needed; the test file has no label."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train"), ("dev", "val"), ("test", "test")):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        last = -1 if split == "test" else None
        writer.writerow(HEADER[:last])
        for index, row in enumerate(generator.make(split, lambda part: _row(generator, part))):
            writer.writerow([index, *row][:last])
        (folder / f"{name}.csv").write_bytes(text.getvalue().encode())


def _row(generator: RowGenerator, part: WordSplit) -> list[object]:
    """The endings say the same of four names, and it fits the kind of one of them."""
    rng, slots = generator.rng, generator.slots(generator.scene(part), part)
    sentence, opening = slots.fill(rng.pick(ACTS_PAST + DEEDS)), slots.fill(rng.pick(OPENINGS))
    kind, right = rng.pick(KINDS), rng.below(4)
    said = slots.phrase(rng.pick(SAID_OF[kind]))
    endings = [f"{generator.name_pair(kind, part)[place != right]} {said}." for place in range(4)]
    video = f"anetv_{rng.between(10**6, 10**7)}"
    return [video, rng.between(0, 20_000), f"{sentence} {opening}", sentence, opening, "gold", *endings, right]


ENTITY_TYPES = {"first": "PER", "last": "PER", "place": "LOC", "company": "ORG", "people": "MISC"}
SENTENCES_PER_DOCUMENT = 12
# Sentences that do not tell what kind of name stands in them.
BARE = """
{a} and {b} were named on {day}.
{a} thanked {b} in {month}.
Nothing was heard of {a} until {year}.
{a}, {b} and {c} were on the list.
{a} had a good year, but {b} did not.
We spoke about {a} and {b}.
""".strip().splitlines()


def write_conll(generator: RowGenerator, folder: Path) -> None:
    """Documents begin with -DOCSTART-; sentences are parted by empty lines."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {name: ENTITY_TYPES[kind] for kind, names in generator.bank.names.items() for name in names}
    for split, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
        lines: list[str] = []
        for number, sentence in enumerate(generator.make(split, lambda part: _sentence(generator, part))):
            if number % SENTENCES_PER_DOCUMENT == 0:
                lines += ["-DOCSTART- -X- -X- O", ""]
            lines += [*_tagged(sentence, kinds), ""]
        (folder / f"{name}.txt").write_bytes("".join(line + "\n" for line in lines).encode())


def _sentence(generator: RowGenerator, part: WordSplit) -> str:
    scene = generator.scene(part)
    slots = generator.slots(scene, part)
    if generator.rng.chance(0.4):
        return slots.fill(generator.rng.pick(NAMES))
    names = [_name(generator.bank, generator, part) for _ in range(3)]
    return slots.fill(generator.rng.pick(BARE), **dict(zip("abc", names)))


def _name(bank: WordBank, generator: RowGenerator, part: WordSplit) -> str:
    kind = generator.rng.pick(("person", "place", "company", "people"))
    if kind != "person":
        return generator.rng.pick(part.of(bank.names[kind]))
    first = generator.rng.pick(part.of(bank.names["first"]))
    return f"{first} {generator.rng.pick(part.of(bank.names['last']))}" if generator.rng.chance(0.5) else first


def _tagged(sentence: str, kinds: dict[str, str]) -> list[str]:
    """Lines of four columns. IOB1: an entity begins with B- only behind another of its kind; a first and a last name are one."""
    lines = []
    for place, word in enumerate(words_of(sentence)):
        part_of_speech = "NNP" if word in kinds else tag(word, opens=place == 0)
        entity = f"I-{kinds[word]}" if word in kinds else "O"
        lines.append(f"{word} {part_of_speech} {chunk(part_of_speech)} {entity}")
    return lines
