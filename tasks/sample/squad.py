"""SQuAD v1.1 and v2.0: short passages with one fact of a kind each, and questions that ask for it in other words."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.sample.rows import Source
from tasks.sample.text import Slots
from tasks.sample.world import Part

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


def write_squad(source: Source, folder: Path) -> None:
    """Both versions; dev questions of v1.1 have three answers, impossible ones of v2.0 a plausible answer."""
    folder.mkdir(parents=True, exist_ok=True)
    for version in ("1.1", "2.0"):
        for split in ("train", "dev"):
            articles = _articles(source, split, version)
            document = {"data": articles, "version": f"v{version}" if version == "2.0" else version}
            text = json.dumps(document, ensure_ascii=False)
            (folder / f"{split}-v{version}.json").write_bytes(text.encode())


def _articles(source: Source, split: str, version: str) -> list[dict[str, object]]:
    num_passages = max(1, source.num_rows(split) // QUESTIONS_PER_PASSAGE)
    passages = source.make(split, lambda part: _passage(source, part, split, version), num_passages)
    size = 5
    titles = source.dice.shuffled(source.world.names["place"])
    return [
        {"title": titles[start // size % len(titles)], "paragraphs": passages[start : start + size]}
        for start in range(0, len(passages), size)
    ]


def _passage(source: Source, part: Part, split: str, version: str) -> dict[str, object]:
    dice, scene = source.dice, source.scene(part)
    slots = source.slots(scene, part)
    kinds = dice.sample(list(FACTS), QUESTIONS_PER_PASSAGE + 1)
    told, untold = kinds[:QUESTIONS_PER_PASSAGE], kinds[QUESTIONS_PER_PASSAGE]
    context, answers = "", {}
    for kind in told:
        sentence = slots.fill(dice.pick(FACTS[kind].split("|")))
        before, answer, after = _parted(sentence)
        start = len(context) + (1 if context else 0) + len(before)
        context = f"{context} {before}{answer}{after}".strip()
        answers[kind] = {"text": answer, "answer_start": start}
    questions = []
    for kind in told:
        impossible = version == "2.0" and dice.chance(0.45)
        questions.append(
            _question(source, slots, untold if impossible else kind, answers[kind], split, version, impossible)
        )
    return {"context": context, "qas": questions}


def _parted(sentence: str) -> tuple[str, str, str]:
    before, rest = sentence.split("<")
    answer, after = rest.split(">")
    return before, answer, after


def _question(
    source: Source,
    slots: Slots,
    kind: str,
    answer: dict[str, object],
    split: str,
    version: str,
    impossible: bool,
) -> dict[str, object]:
    number = "".join(source.dice.pick("0123456789abcdef") for _ in range(24))
    copies = [dict(answer) for _ in range(3 if split == "dev" else 1)]
    question: dict[str, object] = {
        "question": slots.fill(source.dice.pick(ASKED[kind].split("|"))),
        "id": number,
    }
    question["answers"] = [] if impossible else copies
    if version == "2.0":
        question["is_impossible"] = impossible
        if impossible:
            question["plausible_answers"] = copies
    return question
