"""Model cards: README.md with YAML front matter as the hub expects it, filled from the records of the run.

The only value that users provide is the license. Missing facts stay empty, and `faults` lists them.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.benchmarks.table import BENCHMARKS
from model.common.digests import read_digests
from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.dvc.dvc_digests import locked
from tasks.leaderboard import formatting, history
from tasks.leaderboard.schema import CellRecord, Leaderboard, RunRecord, RunSystem, ScoreSummary
from tasks.project.pages import templates
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml
from tasks.tracking.tracking import flatten

_HUB_TASKS = {
    "classes": "text-classification",
    "regression": "text-classification",
    "choice": "multiple-choice",
    "span": "question-answering",
    "tags": "token-classification",
}
_AUTO_CLASSES = {
    None: "AutoModel",
    "classes": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "choice": "AutoModelForMultipleChoice",
    "span": "AutoModelForQuestionAnswering",
    "tags": "AutoModelForTokenClassification",
}
_NOT_KNOWN = ("unknown", "other")  # licenses that a source states if it has none
_OUTPUTS = ("data", "build/corpus", "build/tokenizer", "build/tokens", "build/pretrain", "build/finetune")


@dataclass(frozen=True)
class CardFacts:
    """All facts of a card."""

    encoder: str
    """Name of the encoder in params.yaml."""
    kind: str
    """pretrained, scratch or external."""
    benchmark: str = ""
    """Benchmark of a fine-tuned model; empty for an encoder."""
    licence: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """report.json of the corpus; empty for an external encoder."""
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    """metrics.json of pre-training."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Recipe of pre-training, as dvc.lock recorded it (that of fine-tuning is part of the scores)."""
    system: RunSystem | None = None
    """Scores; None if it is on no leaderboard."""
    record: RunRecord | None = None
    """Record of the leaderboard."""
    timing: Mapping[str, Any] = field(default_factory=dict)
    """timing.json of pre-training, if it ran on this machine."""
    cost_per_hour: float = 0.0
    outputs: Mapping[str, str] = field(default_factory=dict)
    """path → MD5 as DVC recorded it."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """file → SHA-256."""


def gather(project: Project, encoder: str, folder: Path, benchmark: str = "") -> CardFacts:
    """Collect the facts of an encoder, or of its fine-tuned model for `benchmark`, whose directory is `folder`."""
    from tasks.params.root import load_params

    promotion = load_params(project.params_path).promotion
    record = current_record(project)
    system = record.system(encoder) if record else None
    metrics = _read(RunDir(project.build / "pretrain" / encoder).metrics)
    kind = system.kind if system else "scratch" if metrics.get("num_steps") == 0 else "pretrained"
    external = not metrics
    paths = locked(project)
    timing = RunDir(project.runs / "pretrain" / f"{encoder}-{metrics.get('digest', '')}").timing
    return CardFacts(
        encoder=encoder,
        kind="external" if external else kind,
        benchmark=benchmark,
        licence=promotion.licence,
        config=_read(folder / "config.json"),
        corpus={} if external else _read(project.build / "corpus" / "report.json"),
        pretraining=metrics,
        recipe={} if external else _recipe(project, encoder),
        system=system,
        record=record,
        timing=_read(timing),
        cost_per_hour=promotion.cost_per_hour,
        outputs={path: paths[path] for path in _OUTPUTS if path in paths},
        digests=read_digests(folder),
    )


def current_record(project: Project) -> RunRecord | None:
    """Return the record of the leaderboard in build/, made from it if the history has none (after `dvc pull`).

    None if there is no leaderboard.
    """
    content = _read(project.build / "leaderboard" / "leaderboard.json")
    if not content:
        return None
    board = Leaderboard.parse(content, "build/leaderboard/leaderboard.json")
    path = project.leaderboards / history.record_digest(board) / "record.json"
    if path.is_file():
        return history.read_record(path)
    return history.record_of(board, {}, {})


def faults(facts: CardFacts) -> list[str]:
    """Facts that a complete card needs and this one lacks."""
    found = []
    sources = facts.corpus.get("sources", [])
    if facts.kind != "external" and not sources:
        found.append("no record of the corpus (build/corpus/report.json)")
    for source in sources:
        if not source.get("licence"):
            found.append(f"corpus.sources: '{source['name']}' states no licence")
    if facts.kind == "pretrained" and not (facts.recipe and facts.pretraining.get("num_steps")):
        found.append("no record of the pre-training")
    if facts.system is None or not facts.system.scores:
        found.append("no scores (build/leaderboard)")
    if not facts.outputs:
        found.append("no digests of its inputs (dvc.lock)")
    if facts.record is not None and not facts.record.git_commit:
        found.append("no git commit")
    if "model.safetensors" not in facts.digests:
        found.append("no digests of its files")
    return found


def _recipe(project: Project, encoder: str) -> dict[str, Any]:
    """Complete recipe of an encoder by the parameters that DVC recorded, else by params.yaml."""
    from tasks.params.pretrain import PretrainParams

    path = project.root / "dvc.lock"
    stages = read_yaml(path).get("stages", {}) if path.is_file() else {}
    given = stages.get("pretrain", {}).get("params", {}).get("params.yaml", {}).get("pretrain")
    params = PretrainParams.parse(given or read_yaml(project.params_path)["pretrain"], "pretrain")
    for one in params.encoders:
        if one.name == encoder:
            seed = params.seed if one.seed is None else one.seed
            return {**params.recipe_of(one).model_dump(mode="json"), "seed": seed}
    return {}


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        content: dict[str, Any] = read_json(path)
        return content
    return {}


def render(facts: CardFacts) -> str:
    """Render the card."""
    sources, cells, record = facts.corpus.get("sources", []), list(_cells(facts)), facts.record
    spent = record.cost.get(facts.encoder) if record else None
    total = spent.total if spent else {}
    costs = [("pre-training", facts.timing)] if facts.timing else []
    if total.get("seconds") is not None:
        costs.append((f"fine-tuning, {total['num_jobs']} jobs", total))
    provenance = (
        [
            ("git commit", record.git_commit),
            ("leaderboard", record.digest),
            ("parameters", record.params_digest),
            ("pipeline run in MLflow", record.pipeline),
            ("code", ", ".join(f"{stage} {number}" for stage, number in record.versions.items())),
        ]
        if record
        else []
    )
    provenance += [(f"DVC, {path}", digest) for path, digest in facts.outputs.items()]
    provenance += [(f"SHA-256, {name}", digest) for name, digest in sorted(facts.digests.items())]
    environment = templates(Path(__file__).parent / "assets")
    environment.filters.update(
        cell=_cell,
        count=lambda value: "unknown" if value is None else f"{value:,}",
        energy=formatting.energy,
        flatten=flatten,
        perplexity=lambda loss: math.exp(min(50.0, loss)),
        seconds=formatting.seconds,
    )
    body = environment.get_template("card.md.j2").render(
        facts=facts,
        title=title(facts),
        title_of=lambda task: _title_of(facts, task),
        auto_class=_AUTO_CLASSES[_head(facts, facts.benchmark)],
        sources=sources,
        languages=_languages(facts),
        unlicensed=[one["name"] for one in sources if (one.get("licence") or "").lower() in _NOT_KNOWN],
        scores=cells,
        single=[task for task, _, _, score in cells if score.num_runs == 1],
        partial=[task for task, _, cell, _ in cells if cell.num_all_train_rows not in (None, cell.num_train_rows)],
        costs=costs,
        provenance=provenance,
    )
    return f"{_front(facts)}\n\n{body}"


def title(facts: CardFacts) -> str:
    """Name of the model."""
    return f"{facts.encoder}-{facts.benchmark}" if facts.benchmark else facts.encoder


def _languages(facts: CardFacts) -> list[str]:
    return sorted({source["language"] for source in facts.corpus.get("sources", []) if source.get("language")})


def _front(facts: CardFacts) -> str:
    """YAML front matter."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=_HUB_TASKS[_head(facts, task) or "classes"],
            dataset_type=task,
            dataset_name=_title_of(facts, task),
            dataset_split="validation",
            metric_type=metric,
            metric_value=score.mean,
        )
        for task, metric, _, score in _cells(facts)
    ]
    head = _head(facts, facts.benchmark)
    data = ModelCardData(
        language=_languages(facts) or None,
        license=facts.licence or "other",
        library_name="transformers",
        pipeline_tag=_HUB_TASKS[head] if head else "fill-mask",
        tags=["bert", "cloze"],
        model_name=title(facts),
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _cells(facts: CardFacts) -> Iterator[tuple[str, str, CellRecord, ScoreSummary]]:
    """Task, metric, record and score of every headline score (for a fine-tuned model, of all metrics of its task)."""
    system = facts.system
    if system is None or facts.record is None:
        return
    if facts.benchmark:
        if facts.benchmark in system.cells:
            for metric, score in system.scores[facts.benchmark].items():
                yield facts.benchmark, metric, system.cells[facts.benchmark], score
        return
    for task, metric in facts.record.headline.items():
        if task in system.scores:
            yield task, metric, system.cells[task], system.scores[task][metric]


def _head(facts: CardFacts, task: str) -> str | None:
    row = (BENCHMARKS | (facts.record.custom if facts.record else {})).get(task)
    return row.head if row else None


def _title_of(facts: CardFacts, task: str) -> str:
    return facts.record.titles.get(task, task) if facts.record else task


def _cell(text: str) -> str:
    """Escape text for a table cell."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
