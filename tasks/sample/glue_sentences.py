"""CoLA and SST-2, the benchmarks on single sentences."""

from __future__ import annotations

from pathlib import Path

from tasks.sample.benchmark_rows import KINDS, RowGenerator, spaced, write_table
from tasks.sample.templates import SAID_OF
from tasks.sample.word_bank import WordSplit

SPLITS = ("train", "dev", "test")
COLA = """
{subject} {verb}.
{First} says that {subject} {verb}.
It is known that {subject} {verb}.
In {year}, {subject} {verb}.
If {subject} {verb}, call {first}.
""".strip().splitlines()
REVIEWS = """
the {work} is {good} and {good2} .
a {good} {work} that we {felt} .
we {felt} this {good} {work} .
{good} , {good2} and full of {feel} .
the crowd {cheered} at the {good} {work} .
the {work} left me with {feel} and {feel2} .
i {felt} the {work} , so {good} was its end .
a {good} {work} about a {member} .
the {good} {work} made us think of {feel} .
a {work} to be {felt} , and {felt2} again .
""".strip().splitlines()
WORKS = ["film", "plot", "script", "cast", "scene", "movie", "ending", "comedy", "drama", "sequel"]


def write_cola(generator: RowGenerator, folder: Path) -> None:
    """Train and dev have no header and four columns: generator, label, the author's star, sentence."""
    for split in SPLITS:
        rows = generator.make(split, lambda part: _cola_row(generator, part))
        if split == "test":
            write_table(folder / "test.tsv", ("index", "sentence"), [(i, text) for i, (_, text) in enumerate(rows)])
            continue
        table = [
            (generator.rng.pick(("gj04", "ks08", "bc01")), label, "" if label else "*", text) for label, text in rows
        ]
        write_table(folder / f"{split}.tsv", None, table)


def _cola_row(generator: RowGenerator, part: WordSplit) -> tuple[int, str]:
    """An acceptable sentence, or one whose subject is a name of the wrong kind or is in the wrong place."""
    rng, slots = generator.rng, generator.slots(generator.scene(part), part)
    fault = "" if rng.chance(0.5) else rng.pick(("kind", "kind", "kind", "order"))
    kind = rng.pick(KINDS)
    right, wrong = generator.name_pair(kind, part)
    subject, verb = wrong if fault == "kind" else right, slots.phrase(rng.pick(SAID_OF[kind]))
    if fault == "order":
        subject, verb = verb, subject
    return int(not fault), slots.fill(rng.pick(COLA), subject=subject, verb=verb)


def write_sst2(generator: RowGenerator, folder: Path) -> None:
    """Lower-cased reviews with spaced punctuation and a trailing blank, as in the original."""
    for split in SPLITS:
        rows = generator.make(split, lambda part: _review(generator, part))
        if split == "test":
            table = [(index, text.rstrip()) for index, (text, _) in enumerate(rows)]
            write_table(folder / "test.tsv", ("index", "sentence"), table)
        else:
            write_table(folder / f"{split}.tsv", ("sentence", "label"), rows)


def _review(generator: RowGenerator, part: WordSplit) -> tuple[str, int]:
    scene = generator.scene(part)
    work = generator.rng.pick(WORKS)
    text = generator.slots(scene, part).fill(generator.rng.pick(REVIEWS), work=work)
    return spaced(text.lower().replace(" .", ".").replace(" ,", ",")) + " ", int(scene.mood == "glad")
