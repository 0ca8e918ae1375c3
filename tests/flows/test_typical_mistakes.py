"""Fifty mistakes that people make: each gives one clear line and exit code 2, before any work starts."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.clone import Clone

pytestmark = pytest.mark.slow

Params = dict[str, Any]
ENCODER = {"name": "more", "shape": {"preset": "tiny"}}


def put(path: str, value: Any) -> Callable[[Params], None]:
    """Set the value at a dotted path; a number is an index."""

    def change(params: Params) -> None:
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        place: Any = params
        for key in parents:
            place = place[key]
        if isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value

    return change


def source(**values: Any) -> Callable[[Params], None]:
    return put("corpus.sources.2", {"name": "mine", "kind": "text", "path": "books", **values})


IN_PARAMS: list[tuple[Callable[[Params], None], str]] = [
    # keys
    (put("pretrian", {}), "unknown key 'pretrian'; did you mean 'pretrain'?"),
    (put("corpus.min_wrods", 3), "unknown key 'corpus.min_wrods'; did you mean 'min_words'?"),
    (put("tokenizer.vocab_sise", 3), "did you mean 'vocab_size'?"),
    (put("tokens.seeed", 3), "unknown key 'tokens.seeed'"),
    (put("pretrain.recipe.warmup_step", 3), "did you mean 'warmup_steps'?"),
    (put("pretrain.recipe.phases.0.lerning_rate", 3), "did you mean 'learning_rate'?"),
    (put("pretrain.encoders.0.shape.hiden_size", 3), "did you mean 'hidden_size'?"),
    (put("pretrain.machine", {"num_device": 2}), "did you mean 'num_devices'?"),
    (put("finetune.seed", [1]), "did you mean 'seeds'?"),
    (put("finetune.recipe.batchsize", 8), "did you mean 'batch_size'?"),
    (put("finetune.grid.learningrate", [1e-3]), "learningrate"),
    (put("finetune.benchmarks", {"rte": {"recpie": {}}}), "did you mean 'recipe'?"),
    (put("leaderboard.note", []), "did you mean 'notes'?"),
    (
        lambda params: params.pop("leaderboard"),
        "the section 'leaderboard' is missing; `leaderboard: {}` has the defaults",
    ),
    (source(documents="files", kind="jsonl"), "'corpus.sources.2.documents'; only books and text have it"),
    (put("promotion", {"margn": 1}), "did you mean 'margin'?"),
    (put("retrain", {"crom": "0 3 * * 0"}), "did you mean 'cron'?"),
    # values
    (put("tokenizer.vocab_size", "many"), "tokenizer.vocab_size"),
    (put("tokens.heldout_fraction", 2), "tokens.heldout_fraction"),
    (put("pretrain.seed", -1), "pretrain.seed"),
    (put("pretrain.recipe.phases.0.sequence_length", 4096), "max_position_embeddings (512)"),
    (put("pretrain.recipe.phases.0.batch_size", 0), "batch_size"),
    (put("pretrain.recipe.accumulate", 7), "not a multiple of 7"),
    (put("pretrain.recipe.optimizer", "adamm"), "optimizer"),
    (put("pretrain.encoders.0.shape.preset", "tinny"), "did you mean 'tiny'"),
    (put("pretrain.encoders.0.shape.num_attention_heads", 3), "num_attention_heads"),
    (put("pretrain.encoders", []), "pretrain.encoders"),
    (put("pretrain.encoders.0.seeds", [1, 1]), "expected different numbers"),
    (put("finetune.seeds", []), "finetune.seeds"),
    (put("finetune.seeds", [1, 1]), "contains a seed twice"),
    (put("finetune.recipe.max_length", 600), "lower max_length"),
    (put("finetune.recipe.num_epochs", "three"), "num_epochs"),
    (put("finetune.grid.learning_rate", 1e-3), "finetune.grid.learning_rate: Input should be a valid list"),
    (put("finetune.judge_share", 1.5), "finetune.judge_share: Input should be less than 1, or 'auto', got 1.5"),
    # names
    (put("pretrain.encoders.2", {**ENCODER, "name": "scratch"}), "two encoders are named 'scratch'"),
    (put("pretrain.encoders.2", {**ENCODER, "name": "My encoder"}), "pretrain.encoders.2.name"),
    (put("finetune.epochs_factor", {"scrach": 3}), "no encoder 'scrach'"),
    (put("finetune.benchmarks", {"colla": None}), "did you mean 'cola'?"),
    (put("finetune.benchmarks", {"rte": {"after": "mlni"}}), "mnli"),
    (put("tokens.heldout_sources", ["boks"]), "no source 'boks'"),
    # paths and columns
    (source(path="mytext"), "corpus reads data/mytext, which does not exist"),
    (source(path="bookz"), "did you mean data/books?"),
    (source(path="../secret"), "expected a path below data/"),
    (source(kind="txt"), "unknown 'txt'; expected one of mediawiki"),
    (source(kind="csv", path="glue/SST-2/dev.tsv", text_column="txt"), "no column 'txt'"),
    (source(name="books"), "two sources are named 'books'"),
    (put("finetune.encoders", [{"name": "mini", "path": "encoders/mini"}]), "finetune.encoders: mini"),
    (put("tokenizer.existing", "data/vocab.txt"), "data/vocab.txt"),
    (put("finetune.tasks", ["task/letters.yaml"]), "did you mean data/tasks/letters.yaml?"),
]
TASK = {"head": "classes", "train": "mood.csv", "dev": "mood.csv", "columns": {"first": "text", "label": "mood"}}
IN_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"head": "clases"}, "did you mean 'classes'?"),
    ({"train": "moods.csv"}, "no such file"),
    ({"columns": {"first": "txt", "label": "mood"}}, "no column 'txt'"),
    ({"labels": ["good", "poor"]}, "unknown label 'bad'"),
    ({"metrics": ["acuracy"]}, "did you mean 'accuracy'?"),
]
IN_TEXT = [
    ("tokens: {heldout_fraction: 0.1}\ntokens: {}\n", ":2: duplicate key 'tokens', also on line 1"),
    ("tokens: [1\n", "expected ',' or ']'"),
]
COMMANDS = [
    (["rn"], "no command 'rn'; did you mean 'run'?"),
    (["run", "--parms", "x"], "see `cloze run --help`"),
    (["run", "--dry-run", "--params", "gone.yaml"], "gone.yaml: no such file"),
    (["run", "--params", "params"], "params: expected a file, found a directory"),
    (["run", "--params", "/dev/zero"], "/dev/zero: not a regular file"),  # it is only read
    (["run", "--params", "pipe"], "pipe: not a regular file"),
    (["fetch", "--params", "pipe"], "pipe: not a regular file"),
    (["run", "--params", "socket"], "socket: not a regular file"),
    (["predict", "colla"], "cola"),
    (["compare", "pretraned", "scratch"], "pretrained"),
    (["export", "champoin", "out"], "champoin"),
    (["logs", "nosuchjob"], "no job matches 'nosuchjob'"),
]


def test_each_gives_one_line(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    params = yaml.safe_load((clone.root / "params.yaml").read_text())
    (clone.root / "data" / "tasks" / "mood.csv").write_text("text,mood\nfine,good\nawful,bad\n")
    cases: list[tuple[list[str], str]] = list(COMMANDS)
    os.mkfifo(clone.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(clone.root):  # addresses are short
        listening.bind("socket")

    def add(content: str, message: str) -> None:
        path = tmp_path / f"{len(cases)}.yaml"
        path.write_text(content)
        cases.append((["run", "--dry-run", "--accept-data", "--params", str(path)], message))

    for change, message in IN_PARAMS:
        changed = copy.deepcopy(params)
        changed.setdefault("leaderboard", {})
        change(changed)
        add(yaml.safe_dump(changed), message)
    for number, (values, message) in enumerate(IN_TASKS):
        name = f"tasks/mood{number}.yaml"
        (clone.root / "data" / name).write_text(yaml.safe_dump(TASK | values))
        changed = copy.deepcopy(params)
        changed["finetune"]["tasks"] = [name]
        add(yaml.safe_dump(changed), message)
    for content, message in IN_TEXT:
        add(content, message)
    assert len(cases) >= 50
    before = {path: path.stat().st_mtime_ns for path in (clone.root / "build").rglob("*")}
    wrong = []
    for (command, message), (code, said) in zip(cases, clone.run_all(*(command for command, _ in cases))):
        lines = [line for line in said.splitlines() if line.startswith("cloze: ")]
        if code != 2 or len(lines) != 1 or message not in lines[0]:
            wrong.append((command, message, code, said[-600:]))
    assert not wrong, "\n\n".join(map(str, wrong))
    assert {path: path.stat().st_mtime_ns for path in (clone.root / "build").rglob("*")} == before
