"""Write SQuAD v1.1 and v2.0, SWAG, CoNLL-2003 and a custom task in their original file formats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tasks.sample.benchmark_rows import KINDS, SPLITS, RowGenerator, write_csv, write_text
from tasks.sample.parse_trees import chunk, tag, words_of
from tasks.sample.word_bank import ASSETS, PATTERNS, WordSplit

QUESTIONS_PER_PASSAGE = 3
PASSAGES_PER_ARTICLE = 5


def write_squad(generator: RowGenerator, folder: Path) -> None:
    """Write both versions. Dev questions have three answers; impossible questions of v2.0 have plausible answers."""
    for version in ("1.1", "2.0"):
        for split in ("train", "dev"):
            articles = _articles(generator, split, version)
            document = {"data": articles, "version": f"v{version}" if version == "2.0" else version}
            write_text(folder / f"{split}-v{version}.json", json.dumps(document, ensure_ascii=False))


def _articles(generator: RowGenerator, split: str, version: str) -> list[dict[str, Any]]:
    num_passages = max(1, generator.num_rows(split) // QUESTIONS_PER_PASSAGE)
    passages = generator.make(split, lambda _, part: _passage(generator, part, split, version), num_passages)
    titles = generator.rng.shuffled(generator.bank.names["place"])
    size = PASSAGES_PER_ARTICLE
    return [
        {"title": titles[start // size % len(titles)], "paragraphs": passages[start : start + size]}
        for start in range(0, len(passages), size)
    ]


def _passage(generator: RowGenerator, part: WordSplit, split: str, version: str) -> dict[str, Any]:
    """Return a passage with three kinds of facts and a question about each; impossible questions ask for a fourth."""
    rng, scene = generator.rng, generator.scene(part)
    *told, untold = rng.sample(list(PATTERNS["facts"]), QUESTIONS_PER_PASSAGE + 1)
    context, answers = "", {}
    for kind in told:
        before, answer, after = re.split("[<>]", scene.say(PATTERNS["facts"][kind]))
        start = len(context) + (1 if context else 0) + len(before)
        context = f"{context} {before}{answer}{after}".strip()
        answers[kind] = {"text": answer, "answer_start": start}
    questions: list[dict[str, Any]] = []
    for kind, answer in answers.items():
        impossible = version == "2.0" and rng.chance(0.45)
        copies = [answer] * (3 if split == "dev" else 1)
        number = "".join(rng.pick("0123456789abcdef") for _ in range(24))
        asked = scene.say(PATTERNS["fact_questions"][untold if impossible else kind])
        question: dict[str, Any] = {"question": asked, "id": number, "answers": [] if impossible else copies}
        if version == "2.0":
            question["is_impossible"] = impossible
        if impossible:
            question["plausible_answers"] = copies
        questions.append(question)
    return {"context": context, "qas": questions}


def write_swag(generator: RowGenerator, folder: Path) -> None:
    """Write SWAG; the test file has no labels."""
    endings = [f"ending{number}" for number in range(4)]
    header = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", *endings, "label"]
    for split, name in zip(SPLITS, ("train", "val", "test")):
        last = -1 if split == "test" else None
        rows = [[index, *row][:last] for index, row in enumerate(generator.make(split, _swag_row))]
        write_csv(folder / f"{name}.csv", [header[:last], *rows])


def _swag_row(generator: RowGenerator, part: WordSplit) -> list[object]:
    """Return a row whose four endings say the same about four names; it is true of only one kind of name."""
    rng, scene = generator.rng, generator.scene(part)
    sentence, opening = scene.say(PATTERNS["acts_past"] + PATTERNS["deeds"]), scene.say(PATTERNS["openings"])
    kind, right = rng.pick(KINDS), rng.below(4)
    said = scene.phrase(rng.pick(PATTERNS["said_of"][kind]))
    endings = [f"{generator.name_pair(kind, part)[place != right]} {said}." for place in range(4)]
    video = f"anetv_{rng.between(10**6, 10**7)}"
    return [video, rng.between(0, 20_000), f"{sentence} {opening}", sentence, opening, "gold", *endings, right]


ENTITY_TYPES = {"first": "PER", "last": "PER", "place": "LOC", "company": "ORG", "people": "MISC"}
SENTENCES_PER_DOCUMENT = 12


def write_conll(generator: RowGenerator, folder: Path) -> None:
    """Write CoNLL-2003: word, part of speech, chunk and IOB1 entity per line; -DOCSTART- begins a document."""
    types = {name: ENTITY_TYPES[kind] for kind, names in generator.bank.names.items() for name in names}
    for split, file_name in zip(SPLITS, ("train", "valid", "test")):
        lines: list[str] = []
        for number, sentence in enumerate(generator.make(split, _entities)):
            if number % SENTENCES_PER_DOCUMENT == 0:
                lines += ["-DOCSTART- -X- -X- O", ""]
            for place, word in enumerate(words_of(sentence)):
                part_of_speech = "NNP" if word in types else tag(word, opens=place == 0)
                # IOB1 uses B- only after an entity of the same type; a first and a last name are one entity.
                entity = f"I-{types[word]}" if word in types else "O"
                lines.append(f"{word} {part_of_speech} {chunk(part_of_speech)} {entity}")
            lines.append("")
        write_text(folder / f"{file_name}.txt", "".join(line + "\n" for line in lines))


def _entities(generator: RowGenerator, part: WordSplit) -> str:
    rng, scene = generator.rng, generator.scene(part)
    if rng.chance(0.4):
        return scene.say(PATTERNS["names"])

    def name() -> str:
        names = generator.bank.names
        kind = rng.pick(("first", "place", "company", "people"))
        found = rng.pick(part.of(names[kind]))
        return f"{found} {rng.pick(part.of(names['last']))}" if kind == "first" and rng.chance(0.5) else found

    return scene.say(PATTERNS["bare"], a=name(), b=name(), c=name())


def write_letters(generator: RowGenerator, folder: Path) -> None:
    """Write a custom task with the columns id, letter, mood: classify the mood of the writer as glad or sour."""
    write_text(folder / "letters.yaml", (ASSETS / "letters.yaml").read_text(encoding="utf-8"))
    for split in ("train", "dev"):
        rows = [(f"{split}-{number}", *row) for number, row in enumerate(generator.make(split, _letter))]
        write_csv(folder / "letters" / f"{split}.csv", [("id", "letter", "mood"), *rows])


def _letter(generator: RowGenerator, part: WordSplit) -> tuple[str, str]:
    scene = generator.scene(part, generator.rng.pick(list(generator.bank.feelings)))
    return scene.say(PATTERNS["genres"]["letters"]), scene.mood
