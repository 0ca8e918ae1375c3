"""MNLI: three-way entailment in several genres; the mismatched sets come from genres that training does not have."""

from __future__ import annotations

from pathlib import Path

from tasks.sample.benchmark_rows import RowGenerator, write_table
from tasks.sample.parse_trees import binary_parse, parse
from tasks.sample.word_bank import WordSplit

LABELS = ("entailment", "neutral", "contradiction")
GENRES = {
    "fiction": """
{First} {felt} the {member} {near} the {spot}.
The {member} {acted}, and {first} {cheered} with {feel}.
{First} called it a {good} {member}.
""",
    "travel": """
Visitors to {place} {felt} the {member} {near} the {spot}.
The {good} {member} {acts} {near} the {spot}.
In {place} the {member} is {good} to see.
""",
    "letters": """
Dear {first}, the {member} here is {good}.
We {felt} the {member} by the {spot}, dear {first}.
""",
    "verbatim": """
Well, the {member} was {good}, said {first}.
So {first} {cheered} at the {member}, you see.
""",
}
MATCHED, MISMATCHED = ("fiction", "travel"), ("letters", "verbatim")
HYPOTHESES = """
The {kind} was {said}.
{First} called the {kind} {said} and {said2}.
It was a {said} {member}.
People saw a {said} {kind}.
A {said} {kind} {acted}.
""".strip().splitlines()
HEADER = [
    "index",
    "promptID",
    "pairID",
    "genre",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
    "sentence1",
    "sentence2",
]


def write_mnli(generator: RowGenerator, folder: Path) -> None:
    """Twelve columns in train, sixteen in dev (five annotators, gold_label last), ten in test."""
    half = generator.num_rows("dev") // 2
    _write(generator, folder / "train.tsv", "train", MATCHED, generator.num_rows("train"), 1)
    for name, genres in (("matched", MATCHED), ("mismatched", MISMATCHED)):
        _write(generator, folder / f"dev_{name}.tsv", "dev", genres, half, 5)
        _write(generator, folder / f"test_{name}.tsv", "test", genres, generator.num_rows("test") // 2, 0)


def write_diagnostic(generator: RowGenerator, folder: Path) -> None:
    """GLUE's diagnostic set (AX): index and two sentences of every genre, without labels."""
    genres = MATCHED + MISMATCHED
    pairs = [
        _pair(generator, generator.part("test"), generator.rng.pick(genres), generator.rng.pick(LABELS))
        for _ in range(generator.num_rows("test"))
    ]
    rows = [(index, *pair) for index, pair in enumerate(pairs)]
    write_table(folder / "diagnostic.tsv", ("index", "sentence1", "sentence2"), rows)


def _write(
    generator: RowGenerator, path: Path, split: str, genres: tuple[str, ...], num_rows: int, num_labels: int
) -> None:
    table: list[list[object]] = []
    for index in range(num_rows):
        genre = generator.rng.pick(genres)
        label = LABELS[index % 3]
        one, two = _pair(generator, generator.part(split), genre, label)
        prompt = generator.rng.between(1, 150_000)
        row: list[object] = [
            index,
            prompt,
            f"{prompt}{label[0]}",
            genre,
            binary_parse(one),
            binary_parse(two),
        ]
        row += [parse(one), parse(two), one, two]
        if num_labels:
            row += [label] * (num_labels - 1) + [
                label if num_labels == 1 else generator.rng.pick((label, label, *LABELS)),
                label,
            ]
        table.append(row)
    columns = HEADER + [f"label{n + 1}" for n in range(num_labels)] + (["gold_label"] if num_labels else [])
    order = generator.rng.shuffled(range(len(table)))
    write_table(path, columns, [[place, *table[row][1:]] for place, row in enumerate(order)])


def _pair(generator: RowGenerator, part: WordSplit, genre: str, label: str) -> tuple[str, str]:
    """The premise is glad. Entailed: the same feeling in other words; contradicted: the other one; neutral: looks."""
    scene = generator.scene(part, "glad")
    premise = generator.slots(scene, part).fill(generator.rng.pick(GENRES[genre].strip().splitlines()))
    how = {"entailment": "glad", "neutral": "plain", "contradiction": "sour"}[label]
    return premise, generator.described(scene, part, how).fill(generator.rng.pick(HYPOTHESES))
