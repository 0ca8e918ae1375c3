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
_UNSTATED = "not stated"
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
    parts = [_about(facts), _use(facts), _data(facts), _training(facts), _scores(facts), _cost(facts), _limits(facts)]
    parts.append(_provenance(facts))
    return "\n\n".join([_front(facts), *("\n".join(part) for part in parts)]) + "\n"


def title(facts: CardFacts) -> str:
    """Name of the model."""
    return f"{facts.encoder}-{facts.benchmark}" if facts.benchmark else facts.encoder


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
    sources = facts.corpus.get("sources", [])
    head = _head(facts, facts.benchmark) if facts.benchmark else None
    data = ModelCardData(
        language=sorted({source["language"] for source in sources if source.get("language")}) or None,
        license=facts.licence or "other",
        library_name="transformers",
        pipeline_tag=_HUB_TASKS[head] if head else "fill-mask",
        tags=["bert", "cloze"],
        model_name=title(facts),
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _about(facts: CardFacts) -> list[str]:
    config = facts.config
    what = f"a BERT fine-tuned for {_title_of(facts, facts.benchmark)}" if facts.benchmark else "a BERT encoder"
    how = {
        "pretrained": "pre-trained from the text below",
        "scratch": "with initial weights, not pre-trained",
        "external": "from another source: see its own card for its training data",
    }
    lines = [f"# {title(facts)}", "", f"{what[0].upper()}{what[1:]}, {how[facts.kind]}."]
    if config:
        lines[-1] += (
            f" {config['num_hidden_layers']} layers of {config['hidden_size']}, {config['num_attention_heads']} heads, "
            f"a vocabulary of {config['vocab_size']:,}, at most {config['max_position_embeddings']} tokens."
        )
    return lines


def _use(facts: CardFacts) -> list[str]:
    name = {
        "": "AutoModel",
        "classes": "AutoModelForSequenceClassification",
        "regression": "AutoModelForSequenceClassification",
        "choice": "AutoModelForMultipleChoice",
        "span": "AutoModelForQuestionAnswering",
        "tags": "AutoModelForTokenClassification",
    }[_head(facts, facts.benchmark) or ""]
    code = f'from transformers import AutoTokenizer, {name}\n\nmodel = {name}.from_pretrained("DIRECTORY")\n'
    code += 'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")'
    return ["## Use", "", f"```python\n{code}\n```"]


def _data(facts: CardFacts) -> list[str]:
    lines = ["## Data", ""]
    sources = facts.corpus.get("sources", [])
    if not sources:
        return [*lines, "Not recorded." if facts.kind != "external" else "See the encoder's own card."]
    lines += ["| source | language | licence | from | documents | words |", "|---|---|---|---|---:|---:|"]
    for one in sources:
        licence, origin = one.get("licence") or _UNSTATED, one.get("origin") or _UNSTATED
        counts = f"{_count(one.get('documents'))} | {_count(one.get('words'))}"
        lines.append(f"| {_cell(one['name'])} | {one['language']} | {_cell(licence)} | {_cell(origin)} | {counts} |")
    total = facts.corpus
    lines += ["", f"In all {_count(total.get('documents'))} documents with {_count(total.get('words'))} words."]
    return lines


def _training(facts: CardFacts) -> list[str]:
    lines = ["## Training", ""]
    steps = facts.pretraining.get("num_steps", 0)
    if facts.kind == "pretrained":
        tokens = _count(facts.pretraining.get("num_tokens_seen"))
        lines.append(f"Pre-trained for {steps:,} steps over {tokens} tokens. " + _heldout(facts))
        lines += ["", "| parameter | value |", "|---|---|"]
        lines += [f"| {name} | {_cell(value)} |" for name, value in sorted(flatten(facts.recipe).items())]
    else:
        lines.append("Not pre-trained by this project.")
    cells = facts.system.cells if facts.system else {}
    if facts.benchmark in cells:
        lines += ["", f"Fine-tuned for {_title_of(facts, facts.benchmark)} with:", "", "| parameter | value |"]
        lines += ["|---|---|"]
        found = flatten(cells[facts.benchmark].recipe)
        lines += [f"| {name} | {_cell(value)} |" for name, value in sorted(found.items())]
    return lines


def _heldout(facts: CardFacts) -> str:
    final = facts.pretraining.get("final", {})
    found = {name.removeprefix("heldout/"): value for name, value in final.items() if name.startswith("heldout/")}
    if "mlm_loss" not in found:
        return ""
    perplexity = math.exp(min(50.0, found["mlm_loss"]))
    return f"On held-out text: masked-word loss {found['mlm_loss']:.3f} (perplexity {perplexity:.1f})."


def _scores(facts: CardFacts) -> list[str]:
    lines = ["## Scores", ""]
    rows = list(_cells(facts))
    if not rows:
        return [*lines, "Not measured."]
    lines += [
        "On the dev sets, 0 to 100: mean and sample deviation over the seeds of the recipe that is best on dev.",
        "",
        "| task | metric | mean | deviation | seeds | best | dev rows | remarks |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for task, metric, cell, score in rows:
        spread = "–" if score.std is None else f"{score.std:.2f}"
        counts = f"{score.num_runs} | {score.best:.2f} | {cell.num_dev_rows:,}"
        lines.append(
            f"| {_cell(_title_of(facts, task))} | {metric} | {score.mean:.2f} | {spread} | {counts} | {_remark(cell)} |"
        )
    system = facts.system
    if system is not None and system.average is not None:
        lines += ["", f"The mean over the {len(system.scores)} tasks is {system.average:.2f}."]
    return lines


def _remark(cell: CellRecord) -> str:
    if cell.all_degenerate:
        return "every run gave one answer to all rows"
    if cell.num_degenerate:
        return f"{cell.num_degenerate} runs that gave one answer to all rows are left out"
    return f"best of {cell.num_recipes} recipes" if cell.num_recipes > 1 else ""


def _cost(facts: CardFacts) -> list[str]:
    """Time, energy and, if a price is set, money; unknown values are marked."""
    rows, seconds = [], 0.0
    if facts.timing:
        seconds += facts.timing["seconds"]
        rows.append(f"| pre-training | {formatting.seconds(facts.timing['seconds'])} | {_energy(facts.timing)} |")
    cost = facts.record.cost.get(facts.encoder) if facts.record else None
    total = cost.total if cost else {}
    if total.get("seconds") is not None:
        seconds += total["seconds"]
        rows.append(
            f"| fine-tuning, {total['num_jobs']} jobs | {formatting.seconds(total['seconds'])} | {_energy(total)} |"
        )
    lines = ["## Cost", ""]
    if not rows:
        return [*lines, "Not recorded on the machine that wrote this card."]
    lines += ["| what | time | energy |", "|---|---|---|", *rows]
    if facts.cost_per_hour:
        lines += [
            "",
            f"At {facts.cost_per_hour:g} an hour of the machine: {facts.cost_per_hour * seconds / 3600:,.2f}.",
        ]
    return lines


def _energy(cost: Mapping[str, Any]) -> str:
    joules = cost.get("energy_joules")
    return "not measured" if joules is None else formatting.energy(joules)


def _limits(facts: CardFacts) -> list[str]:
    lines = ["## Limits", ""]
    sources = facts.corpus.get("sources", [])
    if sources:
        languages = ", ".join(sorted({source["language"] for source in sources if source.get("language")}))
        lines.append(
            f"- It was trained on text in {languages or 'an unknown language'} only, with its errors and biases."
        )
    unknown = [source["name"] for source in sources if (source.get("licence") or "").lower() in _NOT_KNOWN]
    if unknown:
        lines.append(
            f"- The license of {', '.join(unknown)} is unknown: ask its publisher before you redistribute the model."
        )
    if facts.benchmark:
        lines.append(
            f"- The rows of {_title_of(facts, facts.benchmark)} have their publisher's own terms, which may also "
            "apply to models trained on them."
        )
    if facts.config:
        lines.append(f"- Texts longer than {facts.config['max_position_embeddings']} tokens are truncated.")
    lines.append("- Scores are on the dev sets, by which recipes were chosen; scores on test sets are usually lower.")
    single = [task for task, _, _, score in _cells(facts) if score.num_runs == 1]
    if single:
        lines.append(f"- One seed on {', '.join(single)}: the variation between training runs is unknown.")
    partial = [task for task, _, cell, _ in _cells(facts) if cell.num_all_train_rows not in (None, cell.num_train_rows)]
    if partial:
        lines.append(f"- Fine-tuned on a part of the training rows of {', '.join(partial)}.")
    parts = facts.corpus.get("contamination", {}).get("parts", {})
    found = sum(part["items_found"] for part in parts.values())
    if parts:
        lines.append(f"- {found:,} rows of benchmarks' dev and test files were found in the corpus.")
    lines += [f"- {note}" for note in (facts.record.notes if facts.record else [])]
    return lines


def _provenance(facts: CardFacts) -> list[str]:
    record = facts.record
    lines = ["## Provenance", "", "| what | value |", "|---|---|"]
    if record is not None:
        facts_of_run = {
            "git commit": record.git_commit,
            "leaderboard": record.digest,
            "parameters": record.params_digest,
            "pipeline run in MLflow": record.pipeline,
            "code": ", ".join(f"{stage} {number}" for stage, number in record.versions.items()),
        }
        lines += [f"| {name} | `{value}` |" for name, value in facts_of_run.items() if value]
    lines += [f"| DVC, {path} | `{digest}` |" for path, digest in facts.outputs.items()]
    lines += [f"| SHA-256, {name} | `{digest}` |" for name, digest in sorted(facts.digests.items())]
    return lines


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
    yield from _headlines(system, facts.record.headline)


def _headlines(system: RunSystem, headline: Mapping[str, str]) -> Iterator[tuple[str, str, CellRecord, ScoreSummary]]:
    for task, metric in headline.items():
        if task in system.scores:
            yield task, metric, system.cells[task], system.scores[task][metric]


def _head(facts: CardFacts, task: str) -> str | None:
    row = (BENCHMARKS | (facts.record.custom if facts.record else {})).get(task)
    return row.head if row else None


def _title_of(facts: CardFacts, task: str) -> str:
    return facts.record.titles.get(task, task) if facts.record else task


def _count(value: Any) -> str:
    return "unknown" if value is None else f"{value:,}"


def _cell(text: str) -> str:
    """Escape text for a table cell."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
