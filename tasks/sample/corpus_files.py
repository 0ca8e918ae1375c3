"""Corpus files of the synthetic dataset: a MediaWiki export dump with articles in wiki markup among redirects, talk pages,
templates and categories; and plain-text books."""

from __future__ import annotations

import base64
import bz2
import hashlib
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

from tasks.sample.passages import Scene, make_scene, passage
from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import WordBank, plural

LANGUAGE, DATE = "en", "20181011"
NAMESPACES = {
    -2: "Media", -1: "Special", 0: "", 1: "Talk", 2: "User", 3: "User talk", 4: "Wikipedia", 5: "Wikipedia talk",
    6: "File", 7: "File talk", 8: "MediaWiki", 9: "MediaWiki talk", 10: "Template", 11: "Template talk",
    12: "Help", 13: "Help talk", 14: "Category", 15: "Category talk", 100: "Portal", 101: "Portal talk",
    828: "Module", 829: "Module talk",
}  # fmt: skip
SCHEMA = "http://www.mediawiki.org/xml/export-0.10"


def write_dump(bank: WordBank, rng: RandomSource, num_articles: int, folder: Path) -> None:
    """`<lang>wiki-<date>-pages-articles.xml.bz2` with `num_articles` articles and about half as many other pages."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = [_siteinfo()]
    taken: dict[str, None] = {}
    for _ in range(num_articles):
        scene = make_scene(bank, rng)
        title, redirect = _title(bank, rng, scene, taken)
        number = len(pages) * 3 + 10
        if rng.chance(0.25):
            pages.append(
                _page(
                    rng,
                    redirect,
                    0,
                    number,
                    f"#REDIRECT [[{title}]]\n\n{{{{R from other name}}}}",
                    redirect=title,
                )
            )
        sections = [passage(bank, rng, scene, rng.between(4, 8), story=False) for _ in range(rng.between(1, 4))]
        pages.append(_page(rng, title, 0, number + 1, article_text(bank, rng, scene, title, sections)))
        if rng.chance(0.15):
            talk = f"== Sources ==\nDoes anybody have a source for the {scene.topic.kinds[0]} part? ~~~~\n:No. ~~~~"
            pages.append(_page(rng, f"Talk:{title}", 1, number + 2, talk))
    for topic in bank.topics:
        number = len(pages) * 3 + 10
        name = topic.name.capitalize()
        box = f"<includeonly>{{{{Infobox|title={{{{{{name}}}}}}|label1=Kind|data1={topic.kinds[0]}}}}}</includeonly>"
        pages.append(_page(rng, f"Template:Infobox {topic.kinds[0]}", 10, number, box))
        pages.append(
            _page(
                rng,
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


def _title(bank: WordBank, rng: RandomSource, scene: Scene, taken: dict[str, None]) -> tuple[str, str]:
    """A title that no article has yet, and another name that redirects to it."""
    scene.hero = scene.hero or rng.pick(scene.topic.members)
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
    for title, redirect in [*rng.shuffled(choices), (f"{member} ({first} {last})", f"{member} ({last})")]:
        if title not in taken:
            taken[title] = None
            return title, redirect
    return _title(bank, rng, make_again(bank, rng, scene), taken)


def make_again(bank: WordBank, rng: RandomSource, scene: Scene) -> Scene:
    """Rename the people and places of a scene, whose titles are all taken."""
    fresh = make_scene(bank, rng, topic=scene.topic)
    scene.people, scene.places, scene.companies = fresh.people, fresh.places, fresh.companies
    return scene


def _page(rng: RandomSource, title: str, namespace: int, number: int, text: str, redirect: str | None = None) -> str:
    stamp = (
        f"2018-{rng.between(1, 9):02d}-{rng.between(1, 28):02d}T{rng.between(0, 23):02d}:{rng.between(0, 59):02d}:00Z"
    )
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


HEADINGS = ["History", "Description", "Life", "Habits", "Names", "Legacy", "Reception", "Place"]


def article_text(bank: WordBank, rng: RandomSource, scene: Scene, title: str, sections: list[list[str]]) -> str:
    """The wikitext of an article: notices, infobox, lead, sections with a table or a list, categories."""
    parts = []
    if rng.chance(0.3):
        parts.append("{{Use dmy dates|date=October 2018}}")
    if rng.chance(0.6):
        parts.append(_infobox(rng, scene, title))
    headings = rng.sample(HEADINGS, len(sections))
    for place, sentences in enumerate(sections):
        if place:
            parts.append(f"== {headings[place]} ==")
            if rng.chance(0.2):
                parts.append(f"{{{{Main|{plural(scene.topic.kinds[0]).capitalize()} of the world}}}}")
            if rng.chance(0.25):
                parts.append(f"[[File:{title.replace(' ', '_')}.jpg|thumb|right|A view of [[{scene.places[0]}]]]]")
        parts.append(_paragraph(rng, scene, sentences))
        if place and rng.chance(0.3):
            parts.append(_table(rng, scene) if rng.chance(0.5) else _list(rng, scene))
    parts.append("== References ==\n{{Reflist}}")
    if rng.chance(0.5):
        parts.append(
            f"== External links ==\n* [https://sample.invalid/{scene.topic.name} Site about {scene.topic.name}]"
        )
    parts.append(f"[[Category:{scene.topic.name.capitalize()}]]\n[[Category:{scene.places[0]}]]")
    return "\n\n".join(parts)


def _paragraph(rng: RandomSource, scene: Scene, sentences: list[str]) -> str:
    marked: list[str] = []
    for sentence in sentences:
        words = sentence.split(" ")
        for place, word in enumerate(words):
            bare = word.rstrip(".,?")
            tail = word[len(bare) :]
            if bare in scene.places and rng.chance(0.3):
                words[place] = f"[[{bare}]]{tail}"
            elif bare == scene.hero and rng.chance(0.2):
                words[place] = f"'''{bare}'''{tail}" if not marked else f"[[{bare.capitalize()}|{bare}]]{tail}"
            elif bare in scene.peoples and rng.chance(0.3):
                words[place] = f"''{bare}''{tail}"
        text = " ".join(words)
        if rng.chance(0.06):
            text = text.replace(" in ", " in&nbsp;", 1)
        chance = rng.below(40)
        if chance < 3:
            text += f"<ref>{{{{cite book|last={scene.people[0][1]}|title=On {scene.topic.name}|year=1999|page={rng.between(1, 300)}}}}}</ref>"
        elif chance == 3:
            text += f'<ref name="{scene.topic.name}" />'
        elif chance == 4:
            text += "<!-- a source is missing here -->"
        elif chance == 5:
            text += "{{citation needed|date=May 2018}}"
        marked.append(text)
    return " ".join(marked)


def _infobox(rng: RandomSource, scene: Scene, title: str) -> str:
    return "\n".join(
        [
            f"{{{{Infobox {scene.topic.kinds[0]}",
            f"| name = {title}",
            f"| image = {title.replace(' ', '_')}.jpg",
            f"| region = [[{scene.places[0]}]]",
            f"| area = {{{{convert|{rng.between(2, 90)}|km2|sqmi}}}}",
            "}}",
        ]
    )


def _table(rng: RandomSource, scene: Scene) -> str:
    rows = [f"|-\n| {place} || {rng.between(10, 900)}" for place in scene.places]
    return "\n".join(['{| class="wikitable"', "! Town !! Number", *rows, "|}"])


def _list(rng: RandomSource, scene: Scene) -> str:
    return "\n".join(f"* [[{member.capitalize()}]]" for member in rng.sample(scene.topic.members, 4))


CHAPTERS = 12
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
WIDTH = 72


def write_books(bank: WordBank, rng: RandomSource, num_books: int, folder: Path) -> None:
    """One file per book; a chapter holds scenes of other topics, and a scene keeps its topic and its mood."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_books):
        title, author = (
            f"The {rng.pick(bank.names['place'])} Road",
            f"{rng.pick(bank.names['first'])} {rng.pick(bank.names['last'])}",
        )
        lines = [title.upper(), "", f"by {author}", "", ""]
        for chapter in ROMAN[:CHAPTERS]:
            lines += [f"CHAPTER {chapter}", ""]
            for _ in range(rng.between(5, 8)):
                sentences = passage(bank, rng, make_scene(bank, rng), rng.between(14, 22), story=True)
                for paragraph in _paragraphs(rng, sentences):
                    lines += [*textwrap.wrap(paragraph, WIDTH), ""]
            lines.append("")
        (folder / f"book-{number + 1:03d}.txt").write_bytes("\n".join(lines).encode())


def _paragraphs(rng: RandomSource, sentences: list[str]) -> list[str]:
    paragraphs = []
    while sentences:
        size = rng.between(3, 6)
        paragraphs.append(" ".join(sentences[:size]))
        sentences = sentences[size:]
    return paragraphs
