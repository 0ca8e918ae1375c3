"""Encoders that continue from a checkpoint: their jobs, and mistakes that are found before any work starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.common.errors import UserError
from model.common.files import write_json
from model.config.encoder import EncoderConfig
from model.config.pretraining import PretrainRun
from model.encoder.encoder import Encoder
from model.formats.hf_folder import save_encoder
from model.tokenizer.wordpiece import SPECIAL_TOKENS, load_tokenizer, make_tokenizer, save_tokenizer, tokenizer_digest
from tasks import preflight
from tasks.params.root import Params, load_params
from tasks.pretrain.pretrain import plan_encoders, required_bytes
from tasks.project.project import Project

SIZE = 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 128}
START = {"name": "on", "start": {"from": "encoders/mini"}}


def write_tokenizer(folder: Path, prefix: str = "w") -> None:
    words = (f"{prefix}{number}" for number in range(SIZE - len(SPECIAL_TOKENS)))
    save_tokenizer(make_tokenizer([*SPECIAL_TOKENS, *words]), folder)


@pytest.fixture
def project(tmp_path: Path, root: Path) -> Project:
    """A project with a checkpoint whose weights are padded, and tokens of its vocabulary."""
    folder = tmp_path / "data" / "encoders" / "mini"
    save_encoder(Encoder(EncoderConfig(vocab_size=SIZE + 24, **SIZES)), folder)
    for directory in (folder, tmp_path / "build" / "tokenizer"):
        write_tokenizer(directory)
    digest = tokenizer_digest(load_tokenizer(folder))
    write_json(tmp_path / "build" / "tokens" / "index.json", {"tokenizer_digest": digest, "vocab_size": SIZE})
    stages = {name: {"deps": ["data/encoders"]} for name in ("tokenizer", "pretrain")}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    shutil.copy(root / "versions.yaml", tmp_path)
    return Project(tmp_path, tmp_path)


def params_of(project: Project, root: Path, *encoders: dict[str, Any], **sections: Any) -> Params:
    values = yaml.safe_load((root / "params.yaml").read_text())
    values["tokenizer"] = {"existing": "data/encoders/mini/tokenizer.json"}
    values["finetune"].pop("epochs_factor")
    values["pretrain"]["encoders"] = list(encoders)
    (project.root / "params.yaml").write_text(yaml.safe_dump(values | sections))
    return load_params(project.root / "params.yaml")


def plan(project: Project, params: Params) -> list[PretrainRun]:
    build = project.build
    preflight.check(project, params, ["pretrain"])
    folders = build / "tokens", build / "tokenizer", project.data, build / "runs"
    return plan_encoders(params.pretrain, *folders, 4, params.fetch.models)


def test_shape_and_vocabulary_come_from_the_checkpoint(project: Project, root: Path) -> None:
    other = {"name": "other", "shape": {"preset": "tiny"}}
    without_dropout = {**START, "name": "dry", "shape": {"hidden_size": 16, "hidden_dropout_prob": 0}}
    on, dry, plain = plan(project, params_of(project, root, START, without_dropout, other))
    assert on.start is not None and plain.start is None
    assert on.encoder_config(SIZE) == EncoderConfig(vocab_size=SIZE, **SIZES)
    assert dry.encoder_config(SIZE).hidden_dropout_prob == 0 and on.recipe.start == "random"
    assert required_bytes(on) > 0
    weights = project.data / "encoders" / "mini" / "model.safetensors"
    save_encoder(Encoder(EncoderConfig(vocab_size=SIZE + 24, **SIZES)), weights.parent)
    again, dry_again, plain_again = plan(project, params_of(project, root, START, without_dropout, other))
    assert again.digest != on.digest != dry.digest != dry_again.digest, "other weights are another job"
    assert plain_again.digest == plain.digest


def test_a_model_of_the_hub_is_found_where_fetch_puts_it(project: Project, root: Path) -> None:
    source = {"name": "m", "kind": "model", "repo": "someone/mini", "revision": "0" * 40, "to": "encoders/mini"}
    hub = {"name": "on", "start": {"from": "someone/mini"}}
    params = params_of(project, root, hub, fetch={"sources": [source]})
    [found], [direct] = plan(project, params), plan(project, params_of(project, root, START))
    assert found.digest == direct.digest and found.start is not None and found.start.name == "someone/mini"
    with pytest.raises(UserError, match="run `cloze fetch` to download someone/mini"):
        away = {**source, "to": "encoders/away"}
        plan(project, params_of(project, root, hub, fetch={"sources": [away]}))


def test_mistakes_in_params(project: Project, root: Path) -> None:
    for encoder, sections, message in (
        (START, {"tokenizer": {}}, r"set `tokenizer: \{existing: data/encoders/mini/tokenizer.json\}`"),
        ({**START, "recipe": {"phases": []}}, {}, "no steps to continue with"),
        ({**START, "recipe": {"start": "neighbors"}}, {}, "both start and recipe.start"),
        ({**START, "start": {"from": "../mini"}}, {}, "expected a directory below data/"),
        ({**START, "start": {"from": "encoders/mini", "form": "b"}}, {}, "did you mean 'from'"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            params_of(project, root, encoder, **sections)
        assert "\n" not in str(caught.value)


def test_mistakes_in_files(project: Project, root: Path) -> None:
    mini = project.data / "encoders" / "mini"

    def refused(message: str, encoder: dict[str, Any] = START) -> None:
        with pytest.raises(UserError, match=message) as caught:
            plan(project, params_of(project, root, encoder))
        assert "\n" not in str(caught.value)

    refused("shape says num_hidden_layers 2, but .*mini has 1; remove `shape`", {**START, "shape": {"preset": "tiny"}})
    refused("if 'no/such' is a model of the hub, add it to fetch.sources", {**START, "start": {"from": "no/such"}})
    (project.root / "dvc.yaml").write_text("stages: {pretrain: {deps: [build/tokens]}}")
    refused("pretrain reads data/encoders/mini; add `- data/encoders` to the deps")
    config = mini / "config.json"
    was = config.read_text()
    config.write_text(json.dumps({**json.loads(was), "model_type": "roberta"}))
    refused("model_type is 'roberta'")
    config.write_text(was)
    write_tokenizer(project.root / "other", "x")
    tokens = {"existing": "other/tokenizer.json"}
    with pytest.raises(UserError, match=r"set `tokenizer: \{existing: data/encoders/mini/tokenizer.json\}`"):
        plan(project, params_of(project, root, START, tokenizer=tokens))
