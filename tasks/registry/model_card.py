"""A model card: README.md as the hub has it, YAML front matter first, filled from the run's records alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from model.benchmarks.table import BENCHMARKS
from tasks.leaderboard import formatting
from tasks.leaderboard.schema import CellRecord, RunSystem, ScoreSummary
from tasks.registry.card_facts import CardFacts
from tasks.tracking.tracking import flatten

_HUB_TASKS = {
    "classes": "text-classification",
    "regression": "text-classification",
    "choice": "multiple-choice",
    "span": "question-answering",
    "tags": "token-classification",
}
_UNSTATED = "not stated"
_NOT_KNOWN = ("unknown", "other")  # what a source states that has no licence of its own


def render(facts: CardFacts) -> str:
    """The whole card."""
    parts = [_about(facts), _use(facts), _data(facts), _training(facts), _scores(facts), _cost(facts), _limits(facts)]
    parts.append(_provenance(facts))
    return "\n\n".join([_front(facts), *("\n".join(part) for part in parts)]) + "\n"


def title(facts: CardFacts) -> str:
    """What the model is called."""
    return f"{facts.encoder}-{facts.benchmark}" if facts.benchmark else facts.encoder


def _front(facts: CardFacts) -> str:
    """The YAML between the two lines of dashes."""
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
        "scratch": "with first weights, not pre-trained",
        "external": "from elsewhere: see its own card for what it was trained on",
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
        lines.append("Not pre-trained here.")
    cells = facts.system.cells if facts.system else {}
    if facts.benchmark in cells:
        lines += ["", f"Fine-tuned for {_title_of(facts, facts.benchmark)} with:", "", "| parameter | value |"]
        lines += ["|---|---|"]
        found = flatten(cells[facts.benchmark].recipe)
        lines += [f"| {name} | {_cell(value)} |" for name, value in sorted(found.items())]
    return lines


def _heldout(facts: CardFacts) -> str:
    final = facts.pretraining.get("final", {})
    told = {name.removeprefix("heldout/"): value for name, value in final.items() if name.startswith("heldout/")}
    if "mlm_loss" not in told:
        return ""
    perplexity = math.exp(min(50.0, told["mlm_loss"]))
    return f"On held-out text: masked-word loss {told['mlm_loss']:.3f} (perplexity {perplexity:.1f})."


def _scores(facts: CardFacts) -> list[str]:
    lines = ["## Scores", ""]
    rows = list(_cells(facts))
    if not rows:
        return [*lines, "Not measured."]
    lines += [
        "On the dev sets, 0 to 100: the mean over seeds and its sample deviation, by the recipe that was best on dev.",
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
    """Time, energy and, where a price is stated, money; what no machine told is said to be unknown."""
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
    return "no device told it" if joules is None else formatting.energy(joules)


def _limits(facts: CardFacts) -> list[str]:
    lines = ["## Limits", ""]
    sources = facts.corpus.get("sources", [])
    if sources:
        languages = ", ".join(sorted({source["language"] for source in sources if source.get("language")}))
        lines.append(
            f"- It has read text in {languages or 'no stated language'} only, with the errors and views of its sources."
        )
    unknown = [source["name"] for source in sources if (source.get("licence") or "").lower() in _NOT_KNOWN]
    if unknown:
        lines.append(
            f"- Nobody here knows under which licence {', '.join(unknown)} may be used: ask before you pass it on."
        )
    if facts.benchmark:
        lines.append(
            f"- The rows of {_title_of(facts, facts.benchmark)} have their publisher's own terms, which may bind what "
            "was trained on them, too."
        )
    if facts.config:
        lines.append(f"- Texts longer than {facts.config['max_position_embeddings']} tokens have to be cut.")
    lines.append("- Scores are of the dev sets, on which recipes were chosen: those of test sets are usually lower.")
    single = [task for task, _, _, score in _cells(facts) if score.num_runs == 1]
    if single:
        lines.append(f"- One seed on {', '.join(single)}: nothing is known there of the spread of other trainings.")
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
        told = {
            "git commit": record.git_commit,
            "leaderboard": record.digest,
            "parameters": record.params_digest,
            "pipeline run in MLflow": record.pipeline,
            "code": ", ".join(f"{stage} {number}" for stage, number in record.versions.items()),
        }
        lines += [f"| {name} | `{value}` |" for name, value in told.items() if value]
    lines += [f"| DVC, {path} | `{digest}` |" for path, digest in facts.outputs.items()]
    lines += [f"| SHA-256, {name} | `{digest}` |" for name, digest in sorted(facts.digests.items())]
    return lines


def _cells(facts: CardFacts) -> Iterator[tuple[str, str, CellRecord, ScoreSummary]]:
    """Task, metric, cell and score of every headline score (of a fine-tuned model: of all metrics of its task)."""
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
    """Text of others in a table: no line of its own, no column of its own."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
