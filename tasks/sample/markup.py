"""Wiki markup around plain sentences: what a reader of dumps must take away again."""

from __future__ import annotations

from tasks.sample.dice import Dice
from tasks.sample.text import Scene
from tasks.sample.world import World, plural

HEADINGS = ["History", "Description", "Life", "Habits", "Names", "Legacy", "Reception", "Place"]


def article_text(world: World, dice: Dice, scene: Scene, title: str, sections: list[list[str]]) -> str:
    """The wikitext of an article: notices, infobox, lead, sections with a table or a list, categories."""
    parts = []
    if dice.chance(0.3):
        parts.append("{{Use dmy dates|date=October 2018}}")
    if dice.chance(0.6):
        parts.append(_infobox(dice, scene, title))
    headings = dice.sample(HEADINGS, len(sections))
    for place, sentences in enumerate(sections):
        if place:
            parts.append(f"== {headings[place]} ==")
            if dice.chance(0.2):
                parts.append(f"{{{{Main|{plural(scene.topic.kinds[0]).capitalize()} of the world}}}}")
            if dice.chance(0.25):
                parts.append(f"[[File:{title.replace(' ', '_')}.jpg|thumb|right|A view of [[{scene.places[0]}]]]]")
        parts.append(_paragraph(dice, scene, sentences))
        if place and dice.chance(0.3):
            parts.append(_table(dice, scene) if dice.chance(0.5) else _list(dice, scene))
    parts.append("== References ==\n{{Reflist}}")
    if dice.chance(0.5):
        parts.append(
            f"== External links ==\n* [https://sample.invalid/{scene.topic.name} Site about {scene.topic.name}]"
        )
    parts.append(f"[[Category:{scene.topic.name.capitalize()}]]\n[[Category:{scene.places[0]}]]")
    return "\n\n".join(parts)


def _paragraph(dice: Dice, scene: Scene, sentences: list[str]) -> str:
    marked: list[str] = []
    for sentence in sentences:
        words = sentence.split(" ")
        for place, word in enumerate(words):
            bare = word.rstrip(".,?")
            tail = word[len(bare) :]
            if bare in scene.places and dice.chance(0.3):
                words[place] = f"[[{bare}]]{tail}"
            elif bare == scene.hero and dice.chance(0.2):
                words[place] = f"'''{bare}'''{tail}" if not marked else f"[[{bare.capitalize()}|{bare}]]{tail}"
            elif bare in scene.peoples and dice.chance(0.3):
                words[place] = f"''{bare}''{tail}"
        text = " ".join(words)
        if dice.chance(0.06):
            text = text.replace(" in ", " in&nbsp;", 1)
        chance = dice.below(40)
        if chance < 3:
            text += f"<ref>{{{{cite book|last={scene.people[0][1]}|title=On {scene.topic.name}|year=1999|page={dice.between(1, 300)}}}}}</ref>"
        elif chance == 3:
            text += f'<ref name="{scene.topic.name}" />'
        elif chance == 4:
            text += "<!-- a source is missing here -->"
        elif chance == 5:
            text += "{{citation needed|date=May 2018}}"
        marked.append(text)
    return " ".join(marked)


def _infobox(dice: Dice, scene: Scene, title: str) -> str:
    return "\n".join(
        [
            f"{{{{Infobox {scene.topic.kinds[0]}",
            f"| name = {title}",
            f"| image = {title.replace(' ', '_')}.jpg",
            f"| region = [[{scene.places[0]}]]",
            f"| area = {{{{convert|{dice.between(2, 90)}|km2|sqmi}}}}",
            "}}",
        ]
    )


def _table(dice: Dice, scene: Scene) -> str:
    rows = [f"|-\n| {place} || {dice.between(10, 900)}" for place in scene.places]
    return "\n".join(['{| class="wikitable"', "! Town !! Number", *rows, "|}"])


def _list(dice: Dice, scene: Scene) -> str:
    return "\n".join(f"* [[{member.capitalize()}]]" for member in dice.sample(scene.topic.members, 4))
