"""Books: plain text with a title, chapters and paragraphs wrapped as publishers of free books wrap them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tasks.sample.dice import Dice
from tasks.sample.text import make_scene, passage
from tasks.sample.world import World

CHAPTERS = 12
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
WIDTH = 72


def write_books(world: World, dice: Dice, num_books: int, folder: Path) -> None:
    """One file per book; a chapter holds scenes of other topics, and a scene keeps its topic and its mood."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_books):
        title, author = (
            f"The {dice.pick(world.names['place'])} Road",
            f"{dice.pick(world.names['first'])} {dice.pick(world.names['last'])}",
        )
        lines = [title.upper(), "", f"by {author}", "", ""]
        for chapter in ROMAN[:CHAPTERS]:
            lines += [f"CHAPTER {chapter}", ""]
            for _ in range(dice.between(5, 8)):
                sentences = passage(world, dice, make_scene(world, dice), dice.between(14, 22), story=True)
                for paragraph in _paragraphs(dice, sentences):
                    lines += [*textwrap.wrap(paragraph, WIDTH), ""]
            lines.append("")
        (folder / f"book-{number + 1:03d}.txt").write_bytes("\n".join(lines).encode())


def _paragraphs(dice: Dice, sentences: list[str]) -> list[str]:
    paragraphs = []
    while sentences:
        size = dice.between(3, 6)
        paragraphs.append(" ".join(sentences[:size]))
        sentences = sentences[size:]
    return paragraphs
