"""CoNLL-2003: four columns (word, part of speech, chunk, entity), the entities in the IOB1 marks of the original."""

from __future__ import annotations

from pathlib import Path

from tasks.sample.phrases import NAMES
from tasks.sample.rows import Source
from tasks.sample.syntax import chunk, tag, words_of
from tasks.sample.world import Part, World

KINDS = {"first": "PER", "last": "PER", "place": "LOC", "company": "ORG", "people": "MISC"}
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


def write_conll(source: Source, folder: Path) -> None:
    """Documents begin with -DOCSTART-; sentences are parted by empty lines."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {name: KINDS[kind] for kind, names in source.world.names.items() for name in names}
    for split, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
        lines: list[str] = []
        for number, sentence in enumerate(source.make(split, lambda part: _sentence(source, part))):
            if number % SENTENCES_PER_DOCUMENT == 0:
                lines += ["-DOCSTART- -X- -X- O", ""]
            lines += [*_tagged(sentence, kinds), ""]
        (folder / f"{name}.txt").write_bytes("".join(line + "\n" for line in lines).encode())


def _sentence(source: Source, part: Part) -> str:
    scene = source.scene(part)
    slots = source.slots(scene, part)
    if source.dice.chance(0.4):
        return slots.fill(source.dice.pick(NAMES))
    names = [_name(source.world, source, part) for _ in range(3)]
    return slots.fill(source.dice.pick(BARE), **dict(zip("abc", names)))


def _name(world: World, source: Source, part: Part) -> str:
    kind = source.dice.pick(("person", "place", "company", "people"))
    if kind != "person":
        return source.dice.pick(part.of(world.names[kind]))
    first = source.dice.pick(part.of(world.names["first"]))
    return f"{first} {source.dice.pick(part.of(world.names['last']))}" if source.dice.chance(0.5) else first


def _tagged(sentence: str, kinds: dict[str, str]) -> list[str]:
    """Lines of four columns. IOB1: an entity begins with B- only behind another of its kind; a first and a last name are one."""
    lines = []
    for place, word in enumerate(words_of(sentence)):
        part_of_speech = "NNP" if word in kinds else tag(word, opens=place == 0)
        entity = f"I-{kinds[word]}" if word in kinds else "O"
        lines.append(f"{word} {part_of_speech} {chunk(part_of_speech)} {entity}")
    return lines
