"""Write the data card of the corpus: report.json, and report.html, a self-contained page.

Both files depend only on inputs and settings, so identical corpora have identical cards.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from model.benchmarks.table import BENCHMARKS, in_order
from model.common.files import write_bytes, write_json
from tasks.corpus.partition_store import PartitionRecord
from tasks.corpus.selection import Selection
from tasks.params.corpus import CorpusSettings
from tasks.project.pages import asset, markdown_link, markdown_text, templates

REPORT_NAME = "report.json"
PAGE_NAME = "report.html"
ASSETS = Path(__file__).parent / "assets"
_TOP_SENTENCES = 20
_MOST_REASONS = 4
_DOCUMENT_EDGES = (1, 25, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400)
_SENTENCE_EDGES = (1, 3, 5, 8, 12, 16, 20, 25, 30, 40, 50, 75, 100, 150, 300)


def card_content(
    index: Mapping[str, Any], settings: CorpusSettings, selection: Selection, sentence_lengths: Counter[int]
) -> dict[str, Any]:
    """Build report.json from the content of index.json and the number of sentences of each length in words."""
    return {
        **{name: index[name] for name in ("version", "documents", "sentences", "words")},
        "sources": [
            {
                **{name: getattr(source, name) for name in ("name", "kind", "language", "weight")},
                **{name: getattr(source, name, "") for name in ("license", "origin")},
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
        "shared_sentences": _shared_sentences(selected.record for selected in selection.partitions),
        "contamination": index["contamination"],
        "settings": settings.model_dump(mode="json", exclude={"sources", "scheduler", "exchange"}),
    }


def write_card(card: Mapping[str, Any], out_dir: Path) -> None:
    write_json(out_dir / REPORT_NAME, card)
    write_bytes(out_dir / PAGE_NAME, render_card(card).encode())


def render_card(card: Mapping[str, Any]) -> str:
    """Render report.html; all text is HTML-escaped."""
    environment = templates(ASSETS)
    environment.filters.update(number="{:,}".format, share="{:.2%}".format)
    return environment.get_template("card.html.j2").render(
        card=card,
        style=asset(ASSETS / "card.css"),
        drops=sorted(card["drops"].items(), key=lambda entry: (-entry[1]["count"], entry[0])),
        parts=_parts(card["contamination"].get("parts", {})),
    )


def summary_lines(card: Mapping[str, Any], page: str = "") -> str:
    """Summarize the card in Markdown, for the Prefect UI, with a link to its page if it has a URL."""
    counts = ", ".join(f"**{card[name]:,}** {name}" for name in ("documents", "sentences", "words"))
    drops = [f"| {markdown_text(reason)} | {drop['count']:,} |" for reason, drop in card["drops"].items()]
    full = markdown_link("Full report", page) if page else "Full report: build/corpus/report.html"
    lines = [counts, "", "| dropped | count |", "|---|---:|", *drops, "", full]
    return "\n".join(lines)


def one_line(summary: Mapping[str, Any]) -> str:
    """Describe the corpus in a line: documents, words, and how much was dropped for the most frequent reasons."""
    line = f"{summary['documents']:,} documents, {summary['words']:,} words"
    drops = Counter(summary["drops"]).most_common()
    reasons = [f"{reason} ({count:,})" for reason, count in drops[:_MOST_REASONS]]
    return f"{line}; dropped: {', '.join(reasons)}{', ...' if len(drops) > _MOST_REASONS else ''}" if drops else line


def _shared_sentences(records: Iterable[PartitionRecord]) -> list[dict[str, Any]]:
    """List the most widely shared sentences. Counts are lower bounds, because each partition counts separately."""
    counts: Counter[str] = Counter()
    for record in records:
        counts.update({text: documents for documents, text in record["repeated"]})
    top = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_TOP_SENTENCES]
    return [{"documents": documents, "text": text} for text, documents in top]


def _histogram(lengths: Counter[int], edges: Sequence[int]) -> list[dict[str, Any]]:
    """Count lengths in half-open bins; the last bin is unbounded. Empty bins at both ends are removed."""
    counts = [0] * len(edges)
    for length, count in lengths.items():
        counts[max(0, bisect.bisect(edges, length) - 1)] += count
    bins = [{"from": low, "to": high, "count": count} for (low, high), count in zip(pairwise([*edges, None]), counts)]
    filled = [place for place, count in enumerate(counts) if count]
    return bins[filled[0] : filled[-1] + 1] if filled else []


def _parts(parts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    order = in_order({name.partition("/")[0] for name in parts})
    rows = []
    for name in sorted(parts, key=lambda name: (order.index(name.partition("/")[0]), name)):
        benchmark, _, part = name.partition("/")
        title = BENCHMARKS[benchmark].title if benchmark in BENCHMARKS else benchmark
        rows.append({**parts[name], "title": title, "part": part.replace("_", " ")})
    return rows
