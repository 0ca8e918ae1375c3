"""The data card: report.json describes the corpus, and report.html shows it in one file that needs no network.

Both depend only on inputs and settings, so equal corpora have equal cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from model.benchmarks.table import BENCHMARKS, in_order
from model.common.files import write_bytes, write_json
from tasks.corpus.drop_examples import top_sentences
from tasks.corpus.filters.quality import BOILERPLATE, REPEATS, WRONG_LANGUAGE, WRONG_SCRIPT
from tasks.corpus.selection import CONTAMINATED, DUPLICATE, NEAR_DUPLICATE, WEIGHT, Selection
from tasks.params.corpus import CorpusSettings
from tasks.project.pages import asset, templates

REPORT_NAME = "report.json"
PAGE_NAME = "report.html"
ASSETS = Path(__file__).parent / "assets"
_TOP_SENTENCES = 20
_DOCUMENT_EDGES = (1, 25, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400)
_SENTENCE_EDGES = (1, 3, 5, 8, 12, 16, 20, 25, 30, 40, 50, 75, 100, 150, 300)
_MEANINGS = {
    DUPLICATE: "equal to an earlier one but for case and blanks",
    NEAR_DUPLICATE: "most runs of words are those of an earlier one",
    CONTAMINATED: "holds a row of a benchmark's dev or test file",
    WEIGHT: "not among the share that the source's weight takes",
    BOILERPLATE: "sentences, cut out of documents: they stand in too many",
    REPEATS: "too many of its sentences stood in it before",
    WRONG_SCRIPT: "too few letters are of the language's scripts",
    WRONG_LANGUAGE: "taken for another language than its source's",
    "sentence with markup": "sentences, cut out of documents: markup was left in them",
    "too few words": "fewer than min_words",
    "too few sentences": "fewer than min_sentences",
    "mostly symbols": "too few of its words hold a letter",
    "redirect": "a page that only points to another",
    "other namespace": "a talk, user, template or other page that is no article",
    "not wikitext": "a page of another content model",
    "damaged page": "a page that is no XML",
    "page too large": "a page over max_page_bytes",
    "dump without its end": "dumps that were cut between two streams",
}


def card_content(
    index: Mapping[str, Any], settings: CorpusSettings, selection: Selection, sentence_lengths: Counter[int]
) -> dict[str, Any]:
    """The content of report.json.

    Args:
        index: the content of index.json.
        settings: the section `corpus` of params.yaml.
        selection: what was selected.
        sentence_lengths: sentences of the corpus by their words.
    """
    return {
        **{name: index[name] for name in ("version", "documents", "sentences", "words")},
        "sources": [
            {
                **{name: getattr(source, name) for name in ("name", "kind", "language", "weight")},
                **{name: getattr(source, name, "") for name in ("licence", "origin")},
                **index["sources"][source.name],
            }
            for source in settings.sources
        ],
        "words_per_document": _histogram(selection.lengths, _DOCUMENT_EDGES),
        "words_per_sentence": _histogram(sentence_lengths, _SENTENCE_EDGES),
        "drops": {
            reason: {"count": count, "examples": index["examples"].get(reason, [])}
            for reason, count in sorted(index["drops"].items())
        },
        "shared_sentences": [
            {"documents": documents, "text": text}
            for documents, text in top_sentences((selected.record for selected in selection.partitions), _TOP_SENTENCES)
        ],
        "contamination": index["contamination"],
        "settings": settings.model_dump(mode="json", exclude={"sources", "scheduler", "exchange"}),
    }


def write_card(card: Mapping[str, Any], out_dir: Path) -> None:
    """Write report.json and report.html."""
    write_json(out_dir / REPORT_NAME, card)
    write_bytes(out_dir / PAGE_NAME, render_card(card).encode())


def render_card(card: Mapping[str, Any]) -> str:
    """Render the page; every text from outside is escaped."""
    environment = templates(ASSETS)
    environment.filters.update(number="{:,}".format, share="{:.2%}".format)
    drops = sorted(card["drops"].items(), key=lambda entry: (-entry[1]["count"], entry[0]))
    return environment.get_template("card.html.j2").render(
        card=card,
        style=asset(ASSETS / "card.css"),
        histograms=[
            _chart("Words of a document", "documents", card["words_per_document"]),
            _chart("Words of a sentence", "sentences", card["words_per_sentence"]),
        ],
        drops=[(reason, _MEANINGS.get(reason, ""), drop) for reason, drop in drops],
        most_dropped=max((drop["count"] for _, drop in drops), default=1),
        parts=_parts(card["contamination"].get("parts", {})),
        num_found=sum(part["items_found"] for part in card["contamination"].get("parts", {}).values()),
    )


def summary_lines(card: Mapping[str, Any]) -> str:
    """The card in Markdown, for Prefect's page."""
    lines = [
        f"**{card['documents']:,}** documents, **{card['sentences']:,}** sentences, **{card['words']:,}** words",
        "",
    ]
    lines += ["| dropped | count |", "|---|---:|"]
    lines += [f"| {reason} | {drop['count']:,} |" for reason, drop in card["drops"].items()]
    return "\n".join([*lines, "", "All of it: build/corpus/report.html"])


def _histogram(lengths: Counter[int], edges: Sequence[int]) -> list[dict[str, Any]]:
    """Bins from one edge to before the next; the last has no end. Empty ones at both ends are left out."""
    bins = [{"from": low, "to": high, "count": 0} for low, high in pairwise([*edges, None])]
    for length, count in lengths.items():
        place = sum(length >= edge for edge in edges) - 1
        bins[max(0, place)]["count"] += count  # type: ignore[operator]
    filled = [place for place, one in enumerate(bins) if one["count"]]
    return bins[filled[0] : filled[-1] + 1] if filled else []


def _chart(title: str, unit: str, bins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns in per cent of a plot that is stretched freely."""
    most = max((one["count"] for one in bins), default=1)
    total = sum(one["count"] for one in bins)
    width = 100 / max(1, len(bins))
    columns = [
        {
            "left": round(place * width + 0.06 * width, 2),
            "width": round(0.88 * width, 2),
            "height": round(100 * one["count"] / most, 2),
            "label": f"{one['from'] / 1000:g}k" if one["from"] >= 10_000 else f"{one['from']:,}",
            "at": round((place + 0.5) * width, 2),
            "tip": f"{_range(one)} words: {one['count']:,} {unit} ({one['count'] / max(1, total):.1%})",
        }
        for place, one in enumerate(bins)
    ]
    return {"title": title, "unit": unit, "most": most, "share": most / max(1, total), "columns": columns}


def _range(one: Mapping[str, Any]) -> str:
    return f"{one['from']:,} to {one['to'] - 1:,}" if one["to"] else f"{one['from']:,} and more"


def _parts(parts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the contamination table: benchmarks in their order."""
    benchmarks = {name: name.partition("/")[0] for name in parts}
    order = in_order(set(benchmarks.values()))
    names = sorted(parts, key=lambda name: (order.index(benchmarks[name]), name))
    return [
        {
            **parts[name],
            "title": BENCHMARKS[benchmarks[name]].title if benchmarks[name] in BENCHMARKS else benchmarks[name],
            "part": name.partition("/")[2].replace("_", " "),
            "item_share": parts[name]["items_found"] / max(1, parts[name]["items"]),
            "passage_share": parts[name]["passages_found"] / max(1, parts[name]["passages"]),
        }
        for name in names
    ]
