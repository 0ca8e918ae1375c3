"""A MediaWiki export dump: articles in wiki markup among redirects, talk pages, templates and categories."""

from __future__ import annotations

import base64
import bz2
import hashlib
from pathlib import Path
from xml.sax.saxutils import escape

from tasks.sample.dice import Dice
from tasks.sample.markup import article_text
from tasks.sample.text import Scene, make_scene, passage
from tasks.sample.world import World, plural

LANGUAGE, DATE = "en", "20181011"
NAMESPACES = {
    -2: "Media", -1: "Special", 0: "", 1: "Talk", 2: "User", 3: "User talk", 4: "Wikipedia", 5: "Wikipedia talk",
    6: "File", 7: "File talk", 8: "MediaWiki", 9: "MediaWiki talk", 10: "Template", 11: "Template talk",
    12: "Help", 13: "Help talk", 14: "Category", 15: "Category talk", 100: "Portal", 101: "Portal talk",
    828: "Module", 829: "Module talk",
}  # fmt: skip
SCHEMA = "http://www.mediawiki.org/xml/export-0.10"


def write_dump(world: World, dice: Dice, num_articles: int, folder: Path) -> None:
    """`<lang>wiki-<date>-pages-articles.xml.bz2` with `num_articles` articles and about half as many other pages."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = [_siteinfo()]
    taken: dict[str, None] = {}
    for _ in range(num_articles):
        scene = make_scene(world, dice)
        title, redirect = _title(world, dice, scene, taken)
        number = len(pages) * 3 + 10
        if dice.chance(0.25):
            pages.append(
                _page(
                    dice,
                    redirect,
                    0,
                    number,
                    f"#REDIRECT [[{title}]]\n\n{{{{R from other name}}}}",
                    redirect=title,
                )
            )
        sections = [passage(world, dice, scene, dice.between(4, 8), story=False) for _ in range(dice.between(1, 4))]
        pages.append(_page(dice, title, 0, number + 1, article_text(world, dice, scene, title, sections)))
        if dice.chance(0.15):
            talk = f"== Sources ==\nDoes anybody have a source for the {scene.topic.kinds[0]} part? ~~~~\n:No. ~~~~"
            pages.append(_page(dice, f"Talk:{title}", 1, number + 2, talk))
    for topic in world.topics:
        number = len(pages) * 3 + 10
        name = topic.name.capitalize()
        box = f"<includeonly>{{{{Infobox|title={{{{{{name}}}}}}|label1=Kind|data1={topic.kinds[0]}}}}}</includeonly>"
        pages.append(_page(dice, f"Template:Infobox {topic.kinds[0]}", 10, number, box))
        pages.append(
            _page(
                dice,
                f"Category:{name}",
                14,
                number + 1,
                f"Articles about {topic.name}.\n\n[[Category:Contents]]",
            )
        )
    text = "\n".join([*pages, "</mediawiki>"]) + "\n"
    path = folder / f"{LANGUAGE}wiki-{DATE}-pages-articles.xml.bz2"
    path.write_bytes(bz2.compress(text.encode(), 9))


def _siteinfo() -> str:
    names = [
        f'      <namespace key="{key}" case="first-letter"' + (f">{name}</namespace>" if name else " />")
        for key, name in NAMESPACES.items()
    ]
    return "\n".join(
        [
            f'<mediawiki xmlns="{SCHEMA}/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
            f'xsi:schemaLocation="{SCHEMA}/ {SCHEMA}.xsd" version="0.10" xml:lang="{LANGUAGE}">',
            "  <siteinfo>",
            "    <sitename>Wikipedia</sitename>",
            f"    <dbname>{LANGUAGE}wiki</dbname>",
            "    <base>https://sample.invalid/wiki/Main_Page</base>",
            "    <generator>Cloze sample world</generator>",
            "    <case>first-letter</case>",
            "    <namespaces>",
            *names,
            "    </namespaces>",
            "  </siteinfo>",
        ]
    )


def _title(world: World, dice: Dice, scene: Scene, taken: dict[str, None]) -> tuple[str, str]:
    """A title that no article has yet, and another name that redirects to it."""
    scene.hero = scene.hero or dice.pick(scene.topic.members)
    member = scene.hero.capitalize()
    first, last = scene.people[0]
    place, company = scene.places[0], scene.companies[0]
    choices = [
        (member, plural(member)),
        (f"{member} of {place}", f"{place} {scene.hero}"),
        (f"{first} {last}", f"{last} {first}"),
        (place, f"{place} (town)"),
        (company, f"{company} Company"),
        (f"{scene.topic.name.capitalize()} in {place}", f"{place} {scene.topic.name}"),
    ]
    for title, redirect in [*dice.shuffled(choices), (f"{member} ({first} {last})", f"{member} ({last})")]:
        if title not in taken:
            taken[title] = None
            return title, redirect
    return _title(world, dice, make_again(world, dice, scene), taken)


def make_again(world: World, dice: Dice, scene: Scene) -> Scene:
    """Rename the people and places of a scene, whose titles are all taken."""
    fresh = make_scene(world, dice, topic=scene.topic)
    scene.people, scene.places, scene.companies = fresh.people, fresh.places, fresh.companies
    return scene


def _page(dice: Dice, title: str, namespace: int, number: int, text: str, redirect: str | None = None) -> str:
    stamp = f"2018-{dice.between(1, 9):02d}-{dice.between(1, 28):02d}T{dice.between(0, 23):02d}:{dice.between(0, 59):02d}:00Z"
    digest = base64.b32encode(hashlib.sha1(text.encode()).digest()).decode().lower()[:31]
    lines = [
        "  <page>",
        f"    <title>{escape(title)}</title>",
        f"    <ns>{namespace}</ns>",
        f"    <id>{number}</id>",
    ]
    if redirect:
        lines.append(f'    <redirect title="{escape(redirect, {chr(34): "&quot;"})}" />')
    lines += [
        "    <revision>",
        f"      <id>{800_000 + 7 * number}</id>",
        f"      <parentid>{799_000 + 7 * number}</parentid>",
        f"      <timestamp>{stamp}</timestamp>",
        "      <contributor>",
        "        <username>Sampler</username>",
        "        <id>7</id>",
        "      </contributor>",
        "      <comment>/* History */ a word &amp; a link</comment>",
        "      <model>wikitext</model>",
        "      <format>text/x-wiki</format>",
        f'      <text xml:space="preserve">{escape(text, {chr(34): "&quot;"})}</text>',
        f"      <sha1>{digest}</sha1>",
        "    </revision>",
        "  </page>",
    ]
    return "\n".join(lines)
