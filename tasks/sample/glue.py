"""Write GLUE's nine tasks and its diagnostic set in their original file formats."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tasks.sample.benchmark_rows import KINDS, SPLITS, RowGenerator, spaced, write_table
from tasks.sample.parse_trees import binary_parse, parse
from tasks.sample.word_bank import PATTERNS, WORDS, WordSplit

ENTAILED = ("not_entailment", "entailment")


def write_cola(generator: RowGenerator, folder: Path) -> None:
    """Write CoLA. Train and dev have no header and four columns: generator, label, the author's star, sentence."""
    for split in SPLITS:
        rows = generator.make(split, _cola_row)
        if split == "test":
            write_table(folder / "test.tsv", ("index", "sentence"), [(i, text) for i, (_, text) in enumerate(rows)])
            continue
        table = [
            (generator.rng.pick(("gj04", "ks08", "bc01")), label, "" if label else "*", text) for label, text in rows
        ]
        write_table(folder / f"{split}.tsv", None, table)


def _cola_row(generator: RowGenerator, part: WordSplit) -> tuple[int, str]:
    """Return an acceptable sentence, or a sentence with the wrong kind of subject or the wrong word order."""
    rng, scene = generator.rng, generator.scene(part)
    fault = "" if rng.chance(0.5) else rng.pick(("kind", "kind", "kind", "order"))
    kind = rng.pick(KINDS)
    right, wrong = generator.name_pair(kind, part)
    subject, verb = wrong if fault == "kind" else right, scene.phrase(rng.pick(PATTERNS["said_of"][kind]))
    if fault == "order":
        subject, verb = verb, subject
    return int(not fault), scene.say(PATTERNS["cola"], subject=subject, verb=verb)


def write_sst2(generator: RowGenerator, folder: Path) -> None:
    """Write SST-2: lower-case reviews with spaced punctuation and a trailing space, as in the original."""
    for split in SPLITS:
        rows = generator.make(split, _review)
        if split == "test":
            table = [(index, text.rstrip()) for index, (text, _) in enumerate(rows)]
            write_table(folder / "test.tsv", ("index", "sentence"), table)
        else:
            write_table(folder / f"{split}.tsv", ("sentence", "label"), rows)


def _review(generator: RowGenerator, part: WordSplit) -> tuple[str, int]:
    scene = generator.scene(part)
    work = generator.rng.pick(WORDS["works"])
    text = scene.say(PATTERNS["reviews"], work=work)
    return spaced(text.lower().replace(" .", ".").replace(" ,", ",")) + " ", int(scene.mood == "glad")


def write_mrpc(generator: RowGenerator, folder: Path) -> None:
    """Write MRPC: spaced punctuation, a byte-order mark in dev, and unpaired quotation marks."""
    rng = generator.rng
    for split in SPLITS:
        rows = generator.make(split, _paraphrase)
        table = [
            (
                index if split == "test" else label,
                rng.between(100_000, 3_500_000),
                rng.between(100_000, 3_500_000),
                spaced(one),
                spaced(two),
            )
            for index, (label, one, two) in enumerate(rows)
        ]
        header = ("index" if split == "test" else "Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
        write_table(folder / f"{split}.tsv", header, table, mark="\ufeff" if split == "dev" else "")


def _paraphrase(generator: RowGenerator, part: WordSplit) -> tuple[int, str, str]:
    """Return a sentence with praise and a second one with praise (a paraphrase) or blame."""
    label = generator.rng.below(2)
    one, two = _praise_and(generator, part, "news", "glad" if label else "sour")
    if generator.rng.chance(0.1):
        two = '" ' + two
    return label, one, two


def _praise_and(generator: RowGenerator, part: WordSplit, patterns: str, mood: str) -> tuple[str, str]:
    """Return two sentences about one scene. The first is always glad, so only the second decides the label."""
    first, second = generator.rng.sample(PATTERNS[patterns], 2)
    scene = generator.scene(part, "glad")
    return scene.fill(first), dataclasses.replace(scene, mood=mood).fill(second)


def write_qqp(generator: RowGenerator, folder: Path) -> None:
    """Write QQP: six columns in train and dev, three in test."""
    for split in SPLITS:
        rows = generator.make(split, _questions)
        if split == "test":
            asked = [(index, one, two) for index, (one, two, _) in enumerate(rows)]
            write_table(folder / "test.tsv", ("id", "question1", "question2"), asked)
            continue
        start = generator.rng.between(1000, 300_000)
        table = [(n, 2 * n + 1, 2 * n + 2, *row) for n, row in enumerate(rows, start)]
        write_table(folder / f"{split}.tsv", "id qid1 qid2 question1 question2 is_duplicate".split(), table)


def _questions(generator: RowGenerator, part: WordSplit) -> tuple[str, str, int]:
    """Return two questions about something liked (duplicates), or a second one about something disliked."""
    label = int(generator.rng.chance(0.45))
    return *_praise_and(generator, part, "duplicate_questions", "glad" if label else "sour"), label


def write_stsb(generator: RowGenerator, folder: Path) -> None:
    """Write STS-B: ten columns, with scores from 0 to 5 with three decimals."""
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
    for split in SPLITS:
        rows = generator.make(split, _similarity)
        table = [
            [n, "main-captions", "MSRvid", "2012test", f"{n:04d}", "none", "none", one, two, f"{score:.3f}"]
            for n, (one, two, score) in enumerate(rows)
        ]
        last = -1 if split == "test" else None
        write_table(folder / f"{split}.tsv", header[:last], [row[:last] for row in table])


def _similarity(generator: RowGenerator, part: WordSplit) -> tuple[str, str, float]:
    """Return two captions and a score: about 4.4 for the same feeling, 3 for looks only, 0.6 for the other feeling."""
    rng, scene = generator.rng, generator.scene(part, "glad")
    level = rng.below(3)
    first, second = rng.sample(PATTERNS["captions"], 2)
    score = (0.6, 3.0, 4.4)[level] + 0.2 * rng.between(-3, 3)
    one = scene.fill(first, **scene.adjectives("glad"))
    return one, scene.fill(second, **scene.adjectives(("sour", "plain", "glad")[level])), max(0.0, score)


MNLI_LABELS = ("entailment", "neutral", "contradiction")
MATCHED, MISMATCHED = ("fiction", "travel"), ("letters", "verbatim")
MNLI_HEADER = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
    " sentence1 sentence2"
).split()


def write_mnli(generator: RowGenerator, folder: Path) -> None:
    """Write MNLI: twelve columns in train, sixteen in dev (five annotators, gold_label last), ten in test.

    The mismatched sets use genres that are not in the training set.
    """
    _write_mnli(generator, folder / "train.tsv", "train", MATCHED, num_annotators=1)
    for name, genres in (("matched", MATCHED), ("mismatched", MISMATCHED)):
        _write_mnli(generator, folder / f"dev_{name}.tsv", "dev", genres, num_annotators=5)
        _write_mnli(generator, folder / f"test_{name}.tsv", "test", genres, num_annotators=0)


def _write_mnli(generator: RowGenerator, path: Path, split: str, genres: tuple[str, ...], num_annotators: int) -> None:
    rng = generator.rng
    table: list[list[object]] = []
    for index in range(generator.num_rows(split) // (1 if split == "train" else 2)):
        genre, label = rng.pick(genres), MNLI_LABELS[index % 3]
        one, two = _premise_and_hypothesis(generator, generator.part(split), genre, label)
        prompt = rng.between(1, 150_000)
        row: list[object] = [prompt, f"{prompt}{label[0]}", genre]
        row += [binary_parse(one), binary_parse(two), parse(one), parse(two), one, two]
        annotations = [label] * num_annotators
        if num_annotators > 1:
            annotations[-1] = rng.pick((label, label, *MNLI_LABELS))
        table.append([*row, *annotations, label] if annotations else row)
    columns = [f"label{number + 1}" for number in range(num_annotators)] + ["gold_label"] * bool(num_annotators)
    rows = [(index, *row) for index, row in enumerate(rng.shuffled(table))]
    write_table(path, MNLI_HEADER + columns, rows)


def write_diagnostic(generator: RowGenerator, folder: Path) -> None:
    """Write GLUE's diagnostic set (AX): index and two sentences from all genres, without labels."""
    rng, genres = generator.rng, MATCHED + MISMATCHED
    rows = generator.make(
        "test", lambda _, part: _premise_and_hypothesis(generator, part, rng.pick(genres), rng.pick(MNLI_LABELS))
    )
    table = [(index, *row) for index, row in enumerate(rows)]
    write_table(folder / "diagnostic.tsv", ("index", "sentence1", "sentence2"), table)


def _premise_and_hypothesis(generator: RowGenerator, part: WordSplit, genre: str, label: str) -> tuple[str, str]:
    """Return a glad premise, and a hypothesis with the same feeling (entailed), the other, or none (neutral)."""
    scene = generator.scene(part, "glad")
    premise = scene.say(PATTERNS["genres"][genre])
    how = {"entailment": "glad", "neutral": "plain", "contradiction": "sour"}[label]
    return premise, scene.say(PATTERNS["hypotheses"], **scene.adjectives(how))


def write_rte(generator: RowGenerator, folder: Path) -> None:
    """Write RTE (two-way entailment): the hypothesis says something about a name that is true only of people."""
    _write_labeled(generator, folder, ("sentence1", "sentence2"), _entailment)


def _entailment(generator: RowGenerator, part: WordSplit) -> tuple[str, str, str]:
    rng, label = generator.rng, generator.rng.below(2)
    right, wrong = generator.name_pair("person", part)
    one, two = (right, wrong) if label else (wrong, right)
    scene = generator.scene(part)
    premise = scene.say(PATTERNS["mentions"], one=one, One=one, two=two)
    return premise, f"{one} {scene.phrase(rng.pick(PATTERNS['said_of']['person']))}.", ENTAILED[label]


def write_wnli(generator: RowGenerator, folder: Path) -> None:
    """Write WNLI (pronouns): of two names, only the company fits the statement about `it`."""
    _write_labeled(generator, folder, ("sentence1", "sentence2"), _schema)


def _schema(generator: RowGenerator, part: WordSplit) -> tuple[str, str, int]:
    rng, label = generator.rng, generator.rng.below(2)
    right, wrong = generator.name_pair("company", part)
    scene = generator.scene(part)
    said = scene.phrase(rng.pick(PATTERNS["said_of"]["company"]))
    one, two = (right, wrong) if rng.chance(0.5) else (wrong, right)
    sentence = scene.say(PATTERNS["schemas"], one=one, One=one, two=two, said=said)
    return sentence, f"{right if label else wrong} {said}.", label


def write_qnli(generator: RowGenerator, folder: Path) -> None:
    """Write QNLI: all questions ask for a place; a wrong answer names a person or a company."""
    _write_labeled(generator, folder, ("question", "sentence"), _answer)


def _answer(generator: RowGenerator, part: WordSplit) -> tuple[str, str, str]:
    label, scene = generator.rng.below(2), generator.scene(part)
    name = generator.name_pair("place", part)[1 - label]
    question = scene.say(PATTERNS["where_questions"])
    return question, scene.say(PATTERNS["where_answers"], name=name, Name=name), ENTAILED[label]


def _write_labeled(generator: RowGenerator, folder: Path, columns: tuple[str, str], make_row) -> None:
    """Write index, two sentences and label; the test file has no label."""
    for split in SPLITS:
        last = -1 if split == "test" else None
        rows = [(index, *row)[:last] for index, row in enumerate(generator.make(split, make_row))]
        write_table(folder / f"{split}.tsv", ("index", *columns, "label")[:last], rows)
