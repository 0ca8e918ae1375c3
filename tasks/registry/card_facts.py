"""What a model card is filled from: the records of the run that made the encoder, gathered from the project's folder.

Nothing here is asked of people but the licence; what is not recorded stays empty, and `faults` names what a reader of
the card would miss.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.common.digests import read_digests
from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.dvc.dvc_digests import locked
from tasks.leaderboard import history
from tasks.leaderboard.schema import Leaderboard, RunRecord, RunSystem
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml

_OUTPUTS = ("data", "build/corpus", "build/tokenizer", "build/tokens", "build/pretrain", "build/finetune")


@dataclass(frozen=True)
class CardFacts:
    """Everything that a card says."""

    encoder: str
    """Its name in params.yaml."""
    kind: str
    """pretrained, scratch or external."""
    benchmark: str = ""
    """Of a fine-tuned model; empty for the encoder."""
    licence: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """The corpus's report.json; empty for an external encoder."""
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    """The encoder's metrics.json."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Of pre-training, as dvc.lock recorded it (of fine-tuning it stands with the scores)."""
    system: RunSystem | None = None
    """Its scores; None where it is on no leaderboard."""
    record: RunRecord | None = None
    """The leaderboard's record."""
    timing: Mapping[str, Any] = field(default_factory=dict)
    """timing.json of pre-training, where it ran on this machine."""
    cost_per_hour: float = 0.0
    outputs: Mapping[str, str] = field(default_factory=dict)
    """path → MD5 as DVC recorded it."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """file → SHA-256."""


def gather(project: Project, encoder: str, folder: Path, benchmark: str = "") -> CardFacts:
    """The facts of an encoder of the last run, or of its fine-tuned model for `benchmark`, which lies in `folder`."""
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
    """The record of the leaderboard that lies in build/; made from it where the history has none (after `dvc pull`,
    say); None where there is no leaderboard."""
    content = _read(project.build / "leaderboard" / "leaderboard.json")
    if not content:
        return None
    board = Leaderboard.parse(content, "build/leaderboard/leaderboard.json")
    path = project.leaderboards / history.record_digest(board) / "record.json"
    if path.is_file():
        return history.read_record(path)
    return history.record_of(board, {}, {})


def faults(facts: CardFacts) -> list[str]:
    """What a complete card would say and this one does not."""
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
    """The whole recipe of an encoder by the parameters that DVC recorded, else by params.yaml."""
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
