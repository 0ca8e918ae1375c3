"""MRPC, QQP, STS-B, RTE, WNLI and QNLI: pairs of sentences that do or do not go together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tasks.sample.benchmark_rows import RowGenerator, spaced, write_table
from tasks.sample.passages import MOODS
from tasks.sample.templates import SAID_OF
from tasks.sample.word_bank import WordSplit

SPLITS = ("train", "dev", "test")
ENTAILED = ("not_entailment", "entailment")
NEWS = """
{First} {felt} the {member} {near} the {spot}.
Critics called the {kind} {good} and {good2}.
The {member} was {felt} by {first} of {place}.
With {feel}, the crowd {cheered} at the {good} {kind}.
On {day} visitors {felt} the {good} {member}.
The {keeper} said the {kind} was {good}.
Readers in {place} {felt} a {good} {member}.
The {good} {kind} left {first} with {feel}.
""".strip().splitlines()
ASKED = """
Why do people {feel_deed} {members}?
What makes a {member} so {good}?
Who could {feel_deed} such a {good} {kind}?
Is it {good} to live {near} a {member}?
Why do {kinds} give us so much {feel}?
How {good} and {good2} can a {member} be?
Do you {feel_deed} the {member} as I do?
""".strip().splitlines()
CAPTIONS = """
A {said} {member} {acts}.
{Near} the {spot}, a {said} {kind} {acts}.
A {keeper} watches a {said} {member}.
The {said} and {said2} {part} of a {member}.
A {kind} {acts} and looks {said}.
""".strip().splitlines()
MENTIONS = """
Nothing was heard of {one} until {year}.
{First} asked about {one} and {two} on {day}.
{One} and {two} were on the list of {first}.
We spoke about {two} first, and then about {one}.
On {day}, {first} read about {one}.
""".strip().splitlines()
SCHEMAS = """
{First} heard of {one} and {two}, and that it {said}.
{One} came before {two} in the paper, for it {said}.
{First} looked for {one} and then for {two} because it {said}.
{One} and {two} were in the news when it {said}.
""".strip().splitlines()
WHERE = """
Where did the {member} {act}?
Where are {members} {did}?
In which town is the {spot}?
From where does the {keeper} come?
To which town did {first} bring the {member}?
""".strip().splitlines()
ANSWERS = """
The {kind} was the talk of {name} for years.
It was {name}, as the {keeper} knew.
They say {name} {near} the {spot}.
For the {member} it was {name} all along.
{Name}, said the {keeper} in {month}.
""".strip().splitlines()


def write_mrpc(generator: RowGenerator, folder: Path) -> None:
    """Spaced punctuation; a byte order mark in dev; stray quotation marks that no reader may pair."""
    for split in SPLITS:
        rows = generator.make(split, lambda part: _paraphrase(generator, part))
        ids = [(generator.rng.between(100_000, 3_500_000), generator.rng.between(100_000, 3_500_000)) for _ in rows]
        table = [(label, *pair, spaced(one), spaced(two)) for (label, one, two), pair in zip(rows, ids)]
        if split == "test":
            table = [(index, *row[1:]) for index, row in enumerate(table)]
        first = "index" if split == "test" else "Quality"
        write_table(
            folder / f"{split}.tsv",
            (first, "#1 ID", "#2 ID", "#1 String", "#2 String"),
            table,
            mark=split == "dev",
        )


def _paraphrase(generator: RowGenerator, part: WordSplit) -> tuple[int, str, str]:
    """The first sentence praises; the second repeats the praise, or blames."""
    label, (first, second) = generator.rng.below(2), generator.two(NEWS)
    one, two = _glad_and(generator, part, MOODS[1 - label], first, second)
    if generator.rng.chance(0.1):
        two = '" ' + two
    return label, one, two


def _glad_and(generator: RowGenerator, part: WordSplit, mood: str, first: str, second: str) -> tuple[str, str]:
    """Two sentences on one scene: the first is always glad, so the words of the second decide what they share."""
    scene = generator.scene(part, "glad")
    other = dataclasses.replace(scene, mood=mood)
    return generator.slots(scene, part).fill(first), generator.slots(other, part).fill(second)


def write_qqp(generator: RowGenerator, folder: Path) -> None:
    """Six columns in train and dev, three in test."""
    for split in SPLITS:
        rows = generator.make(split, lambda part: _questions(generator, part))
        if split == "test":
            asked = [(index, one, two) for index, (one, two, _) in enumerate(rows)]
            write_table(folder / "test.tsv", ("id", "question1", "question2"), asked)
            continue
        start = generator.rng.between(1000, 300_000)
        table = [(start + n, 2 * (start + n) + 1, 2 * (start + n) + 2, *row) for n, row in enumerate(rows)]
        write_table(folder / f"{split}.tsv", ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), table)


def _questions(generator: RowGenerator, part: WordSplit) -> tuple[str, str, int]:
    """Both ask about what is liked, or the second about what is disliked."""
    label, (first, second) = int(generator.rng.chance(0.45)), generator.two(ASKED)
    return *_glad_and(generator, part, MOODS[1 - label], first, second), label


def write_stsb(generator: RowGenerator, folder: Path) -> None:
    """Ten columns, scores from 0 to 5 with three decimals."""
    header = [
        "index",
        "genre",
        "filename",
        "year",
        "old_index",
        "source1",
        "source2",
        "sentence1",
        "sentence2",
        "score",
    ]
    for split in SPLITS:
        rows = generator.make(split, lambda part: _similarity(generator, part))
        table = [
            [n, "main-captions", "MSRvid", "2012test", f"{n:04d}", "none", "none", one, two, f"{score:.3f}"]
            for n, (one, two, score) in enumerate(rows)
        ]
        last = -1 if split == "test" else None
        write_table(folder / f"{split}.tsv", header[:last], [row[:last] for row in table])


def _similarity(generator: RowGenerator, part: WordSplit) -> tuple[str, str, float]:
    """About 4.4: described with the same feeling; 3: by looks alone; 0.6: with the other feeling."""
    rng, scene = generator.rng, generator.scene(part, "glad")
    level = rng.below(3)
    first, second = generator.two(CAPTIONS)
    score = (0.6, 3.0, 4.4)[level] + 0.2 * rng.between(-3, 3)
    one = generator.described(scene, part, "glad").fill(first)
    return one, generator.described(scene, part, ("sour", "plain", "glad")[level]).fill(second), max(0.0, score)


def write_rte(generator: RowGenerator, folder: Path) -> None:
    """Two-way entailment: the hypothesis says of a name what can be said of people alone."""
    _write_labelled(generator, folder, ("sentence1", "sentence2"), lambda part: _entailment(generator, part))


def _entailment(generator: RowGenerator, part: WordSplit) -> tuple[str, str, str]:
    rng, label = generator.rng, generator.rng.below(2)
    right, wrong = generator.name_pair("person", part)
    one, two = (right, wrong) if label else (wrong, right)
    slots = generator.slots(generator.scene(part), part)
    premise = slots.fill(rng.pick(MENTIONS), one=one, One=one, two=two)
    return premise, f"{one} {slots.phrase(rng.pick(SAID_OF['person']))}.", ENTAILED[label]


def write_wnli(generator: RowGenerator, folder: Path) -> None:
    """Pronouns: of two things named, only one is a firm, of which alone can be said what is said of `it`."""
    _write_labelled(generator, folder, ("sentence1", "sentence2"), lambda part: _schema(generator, part))


def _schema(generator: RowGenerator, part: WordSplit) -> tuple[str, str, int]:
    rng, label = generator.rng, generator.rng.below(2)
    right, wrong = generator.name_pair("company", part)
    slots = generator.slots(generator.scene(part), part)
    said = slots.phrase(rng.pick(SAID_OF["company"]))
    one, two = (right, wrong) if rng.chance(0.5) else (wrong, right)
    sentence = slots.fill(rng.pick(SCHEMAS), one=one, One=one, two=two, said=said)
    return sentence, f"{right if label else wrong} {said}.", label


def write_qnli(generator: RowGenerator, folder: Path) -> None:
    """Does the sentence answer the question? All ask for a place; an answer without a place names a person or a firm."""
    _write_labelled(generator, folder, ("question", "sentence"), lambda part: _answer(generator, part))


def _answer(generator: RowGenerator, part: WordSplit) -> tuple[str, str, str]:
    rng, label = generator.rng, generator.rng.below(2)
    slots = generator.slots(generator.scene(part), part)
    name = generator.name_pair("place", part)[1 - label]
    return slots.fill(rng.pick(WHERE)), slots.fill(rng.pick(ANSWERS), name=name, Name=name), ENTAILED[label]


def _write_labelled(generator: RowGenerator, folder: Path, columns: tuple[str, str], make_row) -> None:
    """Index, two sentences, label; no label in test."""
    for split in SPLITS:
        last = -1 if split == "test" else None
        rows = [(index, *row)[:last] for index, row in enumerate(generator.make(split, make_row))]
        write_table(folder / f"{split}.tsv", ("index", *columns, "label")[:last], rows)
