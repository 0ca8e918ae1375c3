"""MRPC, QQP, STS-B, RTE, WNLI and QNLI: pairs of sentences that do or do not go together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tasks.sample import phrases
from tasks.sample.rows import Source, spaced, write_table
from tasks.sample.text import next_fact
from tasks.sample.world import Part, past

SPLITS = ("train", "dev", "test")
ENTAILED = ("not_entailment", "entailment")
NEWS = """
{First} {did} the {member} {near} the {spot}.
The {member} {acted} {near} the {spot}.
{Near} the {spot}, {first} {did} a {kind} that {acted}.
The {keeper} said the {kind} {acted} {near} a {spot}.
A {keeper} of {place} {did} the {member} {near} the {spot}.
On {day} a {member} {acted} {near} the {spot}.
The {member} {did} by {first} {acted} {near} the {spot}.
{First} of {place} saw the {kind} that {acted} and {acted2}.
""".strip().splitlines()
# Families of questions that ask the same.
ASKED = [
    family.strip().splitlines()
    for family in [
        "\nHow do I {do} a {member} {near} a {spot}?\nWhat is the best way to {do} {kinds} {near} a {spot}?\nHow does a {keeper} {do} a {member}?\nWhich {keeper} can {do} my {member}?",
        "Why do {members} {act} {near} a {spot}?\nWhat makes a {kind} {act} {near} the {spot}?\nWhy does my {member} {act} {time}?\nWhat is the reason that {kinds} {act} {time}?",
        "Where can I see {members} that {act}?\nAt which {spot} do {members} {act}?\nWhere does a {kind} {act} {time}?\nWhich {spot} is best for a {kind} to {act}?\n",
    ]
]
CAPTIONS = """
A {member} {acts} {near} the {spot}.
{Near} the {spot}, a {kind} {acts}.
A {keeper} watches a {member} that {acts}.
The {part} of a {member} {near} a {spot}.
A {kind} {acts} and {acts2} {near} the {spot}.
""".strip().splitlines()
PREMISES = """
{Person}, a {keeper} of {place}, {did} the {member} {near} the {spot} in {month}.
In {place}, {number} {members} {acted} {near} the {spot}, {first} said on {day}.
The {member} that {person} {did} in {place} {acted} {near} a {spot}.
While {first} waited {near} the {spot} in {place}, a {member} {acted} and {acted2}.
""".strip().splitlines()
HYPOTHESES = """
A {kind} {acted} {near} a {spot}.
{First} {did} a {kind}.
{First} saw {kinds} {near} the {spot}.
A {keeper} {did} a {kind}.
""".strip().splitlines()
SCHEMAS = """
{First} put the {one} and the {two} {near} the gate because it {verb}.
The {one} was left beside the {two}, and {first} noticed that it {verb}.
{First} looked at the {one} and then at the {two}, for it {verb}.
The {one} and the {two} were both there when it {verb}.
""".strip().splitlines()


def write_mrpc(source: Source, folder: Path) -> None:
    """Spaced punctuation; a byte order mark in dev; stray quotation marks that no reader may pair."""
    for split in SPLITS:
        rows = source.make(split, lambda part: _paraphrase(source, part))
        ids = [(source.dice.between(100_000, 3_500_000), source.dice.between(100_000, 3_500_000)) for _ in rows]
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


def _paraphrase(source: Source, part: Part) -> tuple[int, str, str]:
    label, scene = source.dice.below(2), source.scene(part)
    other = scene if label else source.elsewhere(scene, part)
    first, second = source.two(NEWS)
    one, two = source.slots(scene, part).fill(first), source.slots(other, part).fill(second)
    if source.dice.chance(0.1):
        two = '" ' + two
    return label, one, two


def write_qqp(source: Source, folder: Path) -> None:
    """Six columns in train and dev, three in test."""
    for split in SPLITS:
        rows = source.make(split, lambda part: _questions(source, part))
        if split == "test":
            asked = [(index, one, two) for index, (one, two, _) in enumerate(rows)]
            write_table(folder / "test.tsv", ("id", "question1", "question2"), asked)
            continue
        start = source.dice.between(1000, 300_000)
        table = [(start + n, 2 * (start + n) + 1, 2 * (start + n) + 2, *row) for n, row in enumerate(rows)]
        write_table(folder / f"{split}.tsv", ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), table)


def _questions(source: Source, part: Part) -> tuple[str, str, int]:
    label, scene = int(source.dice.chance(0.45)), source.scene(part)
    other = scene if label else source.elsewhere(scene, part)
    first, second = source.two(source.dice.pick(ASKED))
    return source.slots(scene, part).fill(first), source.slots(other, part).fill(second), label


def write_stsb(source: Source, folder: Path) -> None:
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
        rows = source.make(split, lambda part: _similarity(source, part))
        table = [
            [n, "main-captions", "MSRvid", "2012test", f"{n:04d}", "none", "none", one, two, f"{score:.3f}"]
            for n, (one, two, score) in enumerate(rows)
        ]
        last = -1 if split == "test" else None
        write_table(folder / f"{split}.tsv", header[:last], [row[:last] for row in table])


def _similarity(source: Source, part: Part) -> tuple[str, str, float]:
    """5: the same told twice; about 3: the same kind of thing does another thing; about 1: another thing."""
    dice, scene = source.dice, source.scene(part)
    level = dice.below(3)
    other = scene
    if level == 0:
        other = source.elsewhere(scene, part)
    elif level == 1:
        other = dataclasses.replace(scene)
        while (other.act_group, other.spot_group) == (scene.act_group, scene.spot_group):
            next_fact(source.world, dice, other)
    first, second = source.two(CAPTIONS)
    score = (0.6, 3.0, 4.4)[level] + 0.2 * dice.between(-3, 3)
    return source.slots(scene, part).fill(first), source.slots(other, part).fill(second), max(0.0, score)


def write_rte(source: Source, folder: Path) -> None:
    """Two-way entailment: a hypothesis speaks of the kind that the premise's member belongs to, or of another."""
    _write_labelled(source, folder, ("sentence1", "sentence2"), lambda part: _entailment(source, part))


def _entailment(source: Source, part: Part) -> tuple[str, str, str]:
    label, scene = source.dice.below(2), source.scene(part)
    other = scene if label else source.elsewhere(scene, part)
    premise = source.slots(scene, part).fill(source.dice.pick(PREMISES))
    return premise, source.slots(other, part).fill(source.dice.pick(HYPOTHESES)), ENTAILED[label]


def write_wnli(source: Source, folder: Path) -> None:
    """Pronouns: of two things named, only one does what `it` does."""
    _write_labelled(source, folder, ("sentence1", "sentence2"), lambda part: _schema(source, part))


def _schema(source: Source, part: Part) -> tuple[str, str, int]:
    dice, label = source.dice, source.dice.below(2)
    scene = source.scene(part)
    doer, other = source.slots(scene, part), source.slots(source.elsewhere(scene, part), part)
    right, wrong, act = doer["member"], other["member"], past(doer["act"])
    one, two = (right, wrong) if dice.chance(0.5) else (wrong, right)
    sentence = doer.fill(dice.pick(SCHEMAS), one=one, two=two, verb=act)
    return sentence, f"The {right if label else wrong} {act}.", label


def write_qnli(source: Source, folder: Path) -> None:
    """Does the sentence answer the question? Wrong sentences speak of another thing or answer another question."""
    _write_labelled(source, folder, ("question", "sentence"), lambda part: _answer(source, part))


def _answer(source: Source, part: Part) -> tuple[str, str, str]:
    dice, label, scene = source.dice, source.dice.below(2), source.scene(part)
    question, answer = dice.pick(phrases.QUESTIONS).split("|")
    other = scene
    if not label:
        other = source.elsewhere(scene, part)
        if dice.chance(0.3):
            answer = dice.pick(phrases.QUESTIONS).split("|")[1]
    return source.slots(scene, part).fill(question), source.slots(other, part).fill(answer), ENTAILED[label]


def _write_labelled(source: Source, folder: Path, columns: tuple[str, str], make_row) -> None:
    """Index, two sentences, label; no label in test."""
    for split in SPLITS:
        last = -1 if split == "test" else None
        rows = [(index, *row)[:last] for index, row in enumerate(source.make(split, make_row))]
        write_table(folder / f"{split}.tsv", ("index", *columns, "label")[:last], rows)
