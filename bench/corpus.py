"""Compare the corpus stage with wikiextractor and mwparserfromhell on a Wikipedia dump, on one core.

    python -m bench.corpus DUMP [--language en] [--peers DIR]

DUMP is a real dump (.xml or .xml.bz2). DIR contains wikiextractor, which is not a dependency of Cloze; install it with
`pip install --target DIR wikiextractor`. All sides extract the articles, split them into sentences with the same
library, and drop text that is not prose by the same rule. The results are median CPU seconds over several alternating
passes.
"""

from __future__ import annotations

import bz2
import io
import json
import re
import statistics
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import OUT, argument_parser, comparison
from bench.processes import ask
from model.common.files import write_json
from tasks.corpus.cleaning import DropExamples, clean_documents, sentences_of
from tasks.corpus.partitions import Partition
from tasks.corpus.sources.file_chunks import FileChunk
from tasks.params.corpus import CorpusSettings, MediaWikiSource, Prose

PASSES = 3
PEERS = ("wikiextractor", "mwparserfromhell")
_MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?(?:ref|br|div|span|small|math|gallery)\b|={2,}|\b(?:File|Image|Category):\S|\|\||"
    r"\d+px\||\b(?:thumb|right|left)\||^\s*[|!*#]|__[A-Z]+__|'{2,}|&(?:nbsp|lt|gt|amp|quot);"
)


def ours(dump: Path, language: str) -> Iterator[list[str]]:
    """Extract documents with the corpus stage, including all its quality filters."""
    source = MediaWikiSource(name="bench", kind="mediawiki", path=dump.name, language=language)
    settings = CorpusSettings(sources=(source,))
    unit = Partition("", source, (FileChunk.whole(dump, dump.name),))
    for document in clean_documents(unit, settings, Counter(), DropExamples()):
        yield document.sentences


def wikiextractor(dump: Path, language: str) -> Iterator[list[str]]:
    """Extract documents with the reader and extractor of wikiextractor's `--no-templates`, in this process."""
    from wikiextractor import WikiExtractor
    from wikiextractor.extract import Extractor

    WikiExtractor.templateNamespace = "Template:"  # its main() reads this from the dump's header
    with _open(dump) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8")
        for identity, revision, title, page in WikiExtractor.collect_pages(lines):
            text = io.StringIO()
            Extractor(identity, revision, "", title, page, to_text=True, keepSections=False).extract(text, False)
            yield _sentences(text.getvalue(), language)


def mwparserfromhell(dump: Path, language: str) -> Iterator[list[str]]:
    """Extract documents with `strip_code`."""
    import mwparserfromhell as parser

    with _open(dump) as file:
        for _, element in ElementTree.iterparse(file):
            if not element.tag.endswith("}page"):
                continue
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element.iter()}
            if fields.get("ns") == "0" and "redirect" not in fields:
                yield _sentences(parser.parse(fields.get("text", "")).strip_code(), language)
            element.clear()


SIDES: dict[str, Callable[[Path, str], Iterator[list[str]]]] = {
    "ours": ours,
    "wikiextractor": wikiextractor,
    "mwparserfromhell": mwparserfromhell,
}


def _open(dump: Path) -> Any:
    return bz2.open(dump) if dump.name.endswith(".bz2") else dump.open("rb")


def _sentences(text: str, language: str) -> list[str]:
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return sentences_of([line for line in lines if line], language, Prose())


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Run one side once over the dump; return its seconds and statistics of its text."""
    if task["peers"]:
        sys.path.append(task["peers"])
    side = SIDES[task["side"]]
    dump, language = Path(task["dump"]), task["language"]
    next(side(dump, language), None)  # load imports and tables before the clock starts
    begin = time.process_time()
    documents = list(side(dump, language))
    seconds = time.process_time() - begin
    sentences = [sentence for document in documents for sentence in document]
    marked = [sentence for sentence in sentences if _MARKUP.search(sentence)]
    return {
        "seconds": seconds,
        "documents": len(documents),
        "sentences": len(sentences),
        "characters": sum(map(len, sentences)),
        "sentences_with_markup": len(marked),
        "characters_without_markup": sum(map(len, sentences)) - sum(map(len, marked)),
        "examples": [sentence[:200] for sentence in marked[:5]],
    }


def results(dump: Path, language: str, peers: Path | None) -> Iterator[dict[str, Any]]:
    """Measure articles per second, and compare with the fastest peer; the detail has all peers."""
    passes: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    for _ in range(PASSES):
        for side in SIDES:
            task = {"side": side, "dump": str(dump), "language": language, "peers": str(peers or "")}
            if side not in missing:
                try:
                    passes.setdefault(side, []).append(ask("bench.corpus", "measure", task=task))
                except RuntimeError as error:
                    if "No module named" not in str(error):
                        raise
                    missing[side] = f"not measured: {str(error).splitlines()[-1]}; see --peers"
                    print(f"bench: {side} {missing[side]}", file=sys.stderr)
    articles = _num_articles(dump)
    sides: dict[str, dict[str, Any]] = {}
    for side, found in passes.items():
        if found:
            seconds = statistics.median(one["seconds"] for one in found)
            sides[side] = {**found[0], "seconds": seconds, "articles_per_second": articles / seconds}
    rates = {side: sides[side]["articles_per_second"] for side in PEERS if side in sides}
    fastest = max(rates, key=lambda side: rates[side])
    rate = sides["ours"]["articles_per_second"]
    detail = {"dump": dump.name, "articles": articles, "sides": sides, "missing": missing}
    unit = f"articles/s on one core (peer: {fastest})"
    yield comparison("corpus-wikitext", rate, rates[fastest], rate / rates[fastest], unit, detail)


def _num_articles(dump: Path) -> int:
    count = 0
    with _open(dump) as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag.endswith("}page"):
                tags = {child.tag.rpartition("}")[2]: child.text for child in element}
                count += tags.get("ns") == "0" and "redirect" not in tags
                element.clear()
    return count


def main() -> int:
    """Measure one dump and print the result."""
    parser = argument_parser("bench.corpus", __doc__)
    parser.add_argument("dump", type=Path, help="a MediaWiki dump, .xml or .xml.bz2")
    parser.add_argument("--language", default="en", help="language of the dump (default: %(default)s)")
    parser.add_argument("--peers", type=Path, help="directory that contains wikiextractor")
    chosen = parser.parse_args()
    for result in results(chosen.dump, chosen.language, chosen.peers):
        write_json(OUT / f"{result['name']}.json", result)
        for side, found in result["detail"]["sides"].items():
            print(
                f"{side:<18}{found['articles_per_second']:>8.1f} articles/s{found['characters']:>12,} characters"
                f"{found['sentences_with_markup']:>7,} of {found['sentences']:,} sentences with markup"
            )
        print(f"{result['name']}: {result['ratio']:.2f} times the {result['unit']}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
    else:
        sys.exit(main())
