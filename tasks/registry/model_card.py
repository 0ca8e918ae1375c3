"""Model cards: README.md with YAML front matter as the hub expects it, filled from the records of the run.

The only value that users provide is the license. Missing facts stay empty, and `faults` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from model.benchmarks.table import BENCHMARKS
from model.common.digests import read_digests
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from tasks.dvc.integrity import locked
from tasks.leaderboard import formatting, history
from tasks.leaderboard.schema import CellRecord, Leaderboard, RunRecord, RunSystem, ScoreSummary
from tasks.project.pages import markdown_templates, markdown_text
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml
from tasks.tracking.tracking import flatten, pipeline_key

# head → the hub's name of the task, class of `transformers`
_HEADS = {
    None: ("fill-mask", "AutoModel"),
    "classes": ("text-classification", "AutoModelForSequenceClassification"),
    "regression": ("text-classification", "AutoModelForSequenceClassification"),
    "choice": ("multiple-choice", "AutoModelForMultipleChoice"),
    "span": ("question-answering", "AutoModelForQuestionAnswering"),
    "tags": ("token-classification", "AutoModelForTokenClassification"),
}
_NOT_KNOWN = ("unknown", "other")  # license values of sources without a license
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
    license: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """report.json of the corpus; empty for an external encoder."""
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    """metrics.json of pre-training."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Pre-training recipe, as recorded in dvc.lock (the fine-tuning recipe is part of the scores)."""
    system: RunSystem | None = None
    """Scores; None if it is not on a leaderboard."""
    record: RunRecord | None = None
    timing: Mapping[str, Any] = field(default_factory=dict)
    """timing.json of pre-training, if it ran on this machine."""
    cost_per_hour: float = 0.0
    outputs: Mapping[str, str] = field(default_factory=dict)
    """path → MD5 as recorded by DVC."""
    digests: Mapping[str, str] = field(default_factory=dict)


def gather(project: Project, encoder: str, folder: Path, benchmark: str = "") -> CardFacts:
    """Collect the facts of an encoder, or of its fine-tuned model for `benchmark`, whose directory is `folder`."""
    from tasks.params.root import load_params

    promotion = load_params(project.params_path).promotion
    record = current_record(project)
    system = record.system(encoder) if record else None
    metrics = read_state(RunDir(project.build / "pretrain" / encoder).metrics, may_move=False)
    kind = system.kind if system else "scratch" if metrics.get("num_steps") == 0 else "pretrained"
    external = not metrics
    paths = locked(project)
    timing = RunDir(project.runs / "pretrain" / f"{encoder}-{metrics.get('digest', '')}").timing
    return CardFacts(
        encoder=encoder,
        kind="external" if external else kind,
        benchmark=benchmark,
        license=promotion.license,
        config=read_state(folder / "config.json", may_move=False),
        corpus={} if external else read_state(project.build / "corpus" / "report.json", may_move=False),
        pretraining=metrics,
        recipe={} if external else _recipe(project, encoder),
        system=system,
        record=record,
        timing=read_state(timing),
        cost_per_hour=promotion.cost_per_hour,
        outputs={path: paths[path] for path in _OUTPUTS if path in paths},
        digests=read_digests(folder),
    )


def current_record(project: Project) -> RunRecord | None:
    """Return the record of the leaderboard in build/, or create it if the history has none (after `dvc pull`).

    Returns None if there is no leaderboard.
    """
    content = read_state(project.build / "leaderboard" / "leaderboard.json", may_move=False)
    if not content:
        return None
    board = Leaderboard.parse(content, "build/leaderboard/leaderboard.json")
    path = project.leaderboards / history.record_digest(board) / "record.json"
    record = history.read_record(path)
    if record is not None:
        key = pipeline_key(project)
        return next((one for one in history.with_repeats(record) if one.pipeline == key), record)
    return history.record_of(board, {}, {})


def faults(facts: CardFacts) -> list[str]:
    """List the facts that are missing for a complete card."""
    sources = facts.corpus.get("sources", [])
    found = [
        f"corpus.sources: '{one['name']}' states no license; add `license` to it in params.yaml"
        for one in sources
        if not one.get("license")
    ]
    lacking = {
        "no record of the corpus (build/corpus/report.json)": facts.kind != "external" and not sources,
        "no record of the pre-training": facts.kind == "pretrained"
        and not (facts.recipe and facts.pretraining.get("num_steps")),
        "no scores (build/leaderboard)": facts.system is None or not facts.system.scores,
        "no digests of its inputs (dvc.lock)": not facts.outputs,
        "no git commit": facts.record is not None and not facts.record.git_commit,
        "no digests of its files": "model.safetensors" not in facts.digests,
    }
    return found + [fault for fault, lacks in lacking.items() if lacks]


def _recipe(project: Project, encoder: str) -> dict[str, Any]:
    """Return the complete recipe of an encoder from the parameters recorded by DVC, else from params.yaml."""
    from tasks.params.root import PretrainParams

    path = project.root / "dvc.lock"
    stages = read_yaml(path).get("stages", {}) if path.is_file() else {}
    given = stages.get("pretrain", {}).get("params", {}).get("params.yaml", {}).get("pretrain")
    params = PretrainParams.parse(given or read_yaml(project.params_path)["pretrain"], "pretrain")
    for one in params.encoders:
        if (seed := params.seeds_of(one).get(encoder)) is not None:
            return {**params.recipe_of(one).model_dump(mode="json"), "seed": seed}
    return {}


def render(facts: CardFacts, repository: str = "") -> str:
    """Render the card as Markdown.

    Args:
        repository: name on the hub, for the example in the card; by default, the example names a directory.
    """
    sources, cells, record = facts.corpus.get("sources", []), _cells(facts), facts.record
    spent = record.cost.get(facts.encoder) if record else None
    total = spent.total if spent else {}
    costs = [("pre-training", facts.timing)] if facts.timing else []
    if total.get("seconds") is not None:
        costs.append((f"fine-tuning, {total['num_jobs']} jobs", total))
    environment = markdown_templates(Path(__file__).parent / "assets")
    environment.filters.update(
        count=lambda value: "unknown" if value is None else f"{value:,}",
        energy=formatting.energy,
        flatten=flatten,
        perplexity=lambda loss: math.exp(min(50.0, loss)),
        seconds=formatting.seconds,
    )
    body = environment.get_template("card.md.j2").render(
        facts=facts,
        place=repository or "DIRECTORY",
        title=title(facts),
        title_of=lambda task: _title_of(facts, task),
        auto_class=_HEADS[_head(facts, facts.benchmark)][1],
        heads=_pretraining_heads(facts),
        heldout=_heldout(facts),
        sources=sources,
        languages=_languages(facts),
        unlicensed=[one["name"] for one in sources if (one.get("license") or "").lower() in _NOT_KNOWN],
        scores=cells,
        single=[task for task, _, _, score in cells if score.num_runs == 1],
        partial=[task for task, _, cell, _ in cells if cell.num_all_train_rows not in (None, cell.num_train_rows)],
        costs=costs,
    )
    return f"{_front(facts)}\n\n{body}"


def title(facts: CardFacts) -> str:
    return f"{facts.encoder}-{facts.benchmark}" if facts.benchmark else facts.encoder


def _languages(facts: CardFacts) -> list[str]:
    return sorted({source["language"] for source in facts.corpus.get("sources", []) if source.get("language")})


def _front(facts: CardFacts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=_HEADS[_head(facts, task) or "classes"][0],
            dataset_type=task,
            dataset_name=_title_of(facts, task),
            dataset_split="validation",
            metric_type=metric,
            metric_value=score.mean,
        )
        for task, metric, _, score in _cells(facts)
    ]
    data = ModelCardData(
        language=_languages(facts) or None,
        license=facts.license or "other",
        library_name="transformers",
        pipeline_tag=_pipeline_tag(facts),
        tags=["bert", "cloze"],
        model_name=title(facts),
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _heldout(facts: CardFacts) -> dict[str, list[dict[str, float]]]:
    """The validations of pre-training on its own text and on each source that is held out as a whole."""
    sources = facts.pretraining.get("heldout_sources", {}).items()
    found = {"its own text": facts.pretraining.get("heldout", [])}
    found |= {part.removeprefix("heldout-"): entries for part, entries in sources}
    return {name: entries for name, entries in found.items() if entries}


def _pipeline_tag(facts: CardFacts) -> str:
    tag = _HEADS[_head(facts, facts.benchmark)][0]
    return "feature-extraction" if tag == "fill-mask" and not _pretraining_heads(facts) else tag


def _pretraining_heads(facts: CardFacts) -> list[str]:
    """Describe the heads that the folder of an encoder contains, by the class in its config.json."""
    architectures = facts.config.get("architectures") or []
    if facts.benchmark or not {"BertForMaskedLM", "BertForPreTraining"}.intersection(architectures):
        return []
    heads: list[str] = [Markup("masked language modeling (`cls.predictions`)")]
    if "BertForPreTraining" in architectures:
        objective = facts.config.get("sentence_objective", "next_sentence").replace("_", " ")
        labels = facts.config.get("sentence_labels", {}).items()
        classes = "".join(f", {number} = {label}" for number, label in sorted(labels)).replace("_", " ")
        heads.append(Markup(f"{markdown_text(objective)} (`cls.seq_relationship`{markdown_text(classes)})"))
    return heads


def _cells(facts: CardFacts) -> list[tuple[str, str, CellRecord, ScoreSummary]]:
    """Yield task, metric, record and score of each headline score (for a fine-tuned model, of all its metrics)."""
    system, record = facts.system, facts.record
    if system is None or record is None:
        return []
    pairs = [(task, metric) for task, metric in record.headline.items() if task in system.scores]
    if facts.benchmark:
        pairs = [(facts.benchmark, metric) for metric in system.scores.get(facts.benchmark, {})]
    return [(task, metric, system.cells[task], system.scores[task][metric]) for task, metric in pairs]


def _head(facts: CardFacts, task: str) -> str | None:
    row = (BENCHMARKS | (facts.record.custom if facts.record else {})).get(task)
    return row.head if row else None


def _title_of(facts: CardFacts, task: str) -> str:
    return facts.record.titles.get(task, task) if facts.record else task
