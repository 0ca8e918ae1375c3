"""Write the corpus files of the synthetic dataset: plain-text books, and a MediaWiki export dump with articles in wiki
markup, redirects, talk pages, templates and categories."""

from __future__ import annotations

import base64
import bz2
import hashlib
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

from tasks.sample.benchmark_rows import write_text
from tasks.sample.passages import Scene, make_scene, passage
from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import ASSETS, WordBank, plural

DUMP_NAME = "enwiki-20181011-pages-articles.xml.bz2"


def write_dump(bank: WordBank, rng: RandomSource, num_articles: int, folder: Path) -> None:
    """Write the file DUMP_NAME with `num_articles` articles and about half as many other pages."""
    pages = [(ASSETS / "siteinfo.xml").read_text(encoding="utf-8")]
    taken: set[str] = set()
    for _ in range(num_articles):
        scene = make_scene(bank, rng)
        title, redirect = _title(scene, taken)
        number = len(pages) * 3 + 10
        if rng.chance(0.25):
            text = f"#REDIRECT [[{title}]]\n\n{{{{R from other name}}}}"
            pages.append(_page(rng, redirect, 0, number, text, redirect=title))
        sections = [passage(scene, rng.between(4, 8), story=False) for _ in range(rng.between(1, 4))]
        pages.append(_page(rng, title, 0, number + 1, _article(scene, title, sections)))
        if rng.chance(0.15):
            talk = f"== Sources ==\nDoes anybody have a source for the {scene.topic.kinds[0]} part? ~~~~\n:No. ~~~~"
            pages.append(_page(rng, f"Talk:{title}", 1, number + 2, talk))
    for topic in bank.topics:
        number = len(pages) * 3 + 10
        name, kind = topic.name.capitalize(), topic.kinds[0]
        box = f"<includeonly>{{{{Infobox|title={{{{{{name}}}}}}|label1=Kind|data1={kind}}}}}</includeonly>"
        pages.append(_page(rng, f"Template:Infobox {kind}", 10, number, box))
        text = f"Articles about {topic.name}.\n\n[[Category:Contents]]"
        pages.append(_page(rng, f"Category:{name}", 14, number + 1, text))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DUMP_NAME).write_bytes(bz2.compress("".join([*pages, "</mediawiki>\n"]).encode(), 9))


def _title(scene: Scene, taken: set[str]) -> tuple[str, str]:
    """Return an unused title, and another name that redirects to it."""
    scene.hero = scene.hero or scene.rng.pick(scene.topic.members)
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
    for title, redirect in [*scene.rng.shuffled(choices), (f"{member} ({first} {last})", f"{member} ({last})")]:
        if title not in taken:
            taken.add(title)
            return title, redirect
    fresh = make_scene(scene.bank, scene.rng, topic=scene.topic)  # rename the people and places
    scene.people, scene.places, scene.companies = fresh.people, fresh.places, fresh.companies
    return _title(scene, taken)


def _page(rng: RandomSource, title: str, namespace: int, number: int, text: str, redirect: str = "") -> str:
    day = f"2018-{rng.between(1, 9):02d}-{rng.between(1, 28):02d}"
    quotes = {'"': "&quot;"}
    target = f'    <redirect title="{escape(redirect, quotes)}" />\n' if redirect else ""
    return f"""\
  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>{number}</id>
{target}    <revision>
      <id>{800_000 + 7 * number}</id>
      <parentid>{799_000 + 7 * number}</parentid>
      <timestamp>{day}T{rng.between(0, 23):02d}:{rng.between(0, 59):02d}:00Z</timestamp>
      <contributor>
        <username>Sampler</username>
        <id>7</id>
      </contributor>
      <comment>/* History */ a word &amp; a link</comment>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text xml:space="preserve">{escape(text, quotes)}</text>
      <sha1>{base64.b32encode(hashlib.sha1(text.encode()).digest()).decode().lower()[:31]}</sha1>
    </revision>
  </page>
"""


HEADINGS = ["History", "Description", "Life", "Habits", "Names", "Legacy", "Reception", "Place"]


def _article(scene: Scene, title: str, sections: list[list[str]]) -> str:
    """Return the wikitext of an article: notices, infobox, lead, sections with tables or lists, and categories."""
    rng, topic, place = scene.rng, scene.topic, scene.places[0]
    file_name = f"{title.replace(' ', '_')}.jpg"
    parts = []
    if rng.chance(0.3):
        parts.append("{{Use dmy dates|date=October 2018}}")
    if rng.chance(0.6):
        box = f"{{{{Infobox {topic.kinds[0]}\n| name = {title}\n| image = {file_name}\n| region = [[{place}]]"
        parts.append(f"{box}\n| area = {{{{convert|{rng.between(2, 90)}|km2|sqmi}}}}\n}}}}")
    for heading, sentences in zip(["", *rng.sample(HEADINGS, len(sections))[1:]], sections):
        if heading:
            parts.append(f"== {heading} ==")
            if rng.chance(0.2):
                parts.append(f"{{{{Main|{plural(topic.kinds[0]).capitalize()} of the world}}}}")
            if rng.chance(0.25):
                parts.append(f"[[File:{file_name}|thumb|right|A view of [[{place}]]]]")
        parts.append(_paragraph(scene, sentences))
        if heading and rng.chance(0.3):
            if rng.chance(0.5):
                rows = "\n".join(f"|-\n| {town} || {rng.between(10, 900)}" for town in scene.places)
                parts.append(f'{{| class="wikitable"\n! Town !! Number\n{rows}\n|}}')
            else:
                parts.append("\n".join(f"* [[{member.capitalize()}]]" for member in rng.sample(topic.members, 4)))
    parts.append("== References ==\n{{Reflist}}")
    if rng.chance(0.5):
        parts.append(f"== External links ==\n* [https://sample.invalid/{topic.name} Site about {topic.name}]")
    parts.append(f"[[Category:{topic.name.capitalize()}]]\n[[Category:{place}]]")
    return "\n\n".join(parts)


def _paragraph(scene: Scene, sentences: list[str]) -> str:
    rng = scene.rng
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


CHAPTERS = "I II III IV V VI VII VIII IX X XI XII".split()
WIDTH = 72


def write_books(bank: WordBank, rng: RandomSource, num_books: int, folder: Path) -> None:
    """Write one file per book. The scenes of a chapter have different topics; a scene keeps its topic and mood."""
    for number in range(num_books):
        title = f"The {rng.pick(bank.names['place'])} Road"
        author = f"{rng.pick(bank.names['first'])} {rng.pick(bank.names['last'])}"
        lines = [title.upper(), "", f"by {author}", "", ""]
        for chapter in CHAPTERS:
            lines += [f"CHAPTER {chapter}", ""]
            for _ in range(rng.between(5, 8)):
                sentences = passage(make_scene(bank, rng), rng.between(14, 22), story=True)
                while sentences:
                    size = rng.between(3, 6)
                    lines += [*textwrap.wrap(" ".join(sentences[:size]), WIDTH), ""]
                    sentences = sentences[size:]
            lines.append("")
        write_text(folder / f"book-{number + 1:03d}.txt", "\n".join(lines))
