"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click
import pytest
import yaml

from flows.cli import cli
from model.adaptation import Combination, LoraAdaptation
from model.benchmarks.recipe import FinetuneRecipe
from model.errors import UserError
from model.machine import Machine
from model.pretrain_recipe import PretrainRecipe
from tasks.params import load_params
from tasks.reference import render


def commands(text: str) -> list[list[str]]:
    """The shell commands of a document's bash blocks, without their comments."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [part.split() for line in lines for part in line.split("&&") if part.strip()]


def documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def test_every_command_that_is_printed_exists(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    seen = set()
    for document in documents(root):
        for words in commands(document.read_text(encoding="utf-8")):
            where = f"{document.name}: {' '.join(words)}"
            if words[0] == "make":
                assert set(words[1:]) <= targets, where
                seen.add("make")
            elif words[0].endswith("cloze"):
                command = cli.commands.get(words[1])
                assert command is not None, where
                seen.add(words[1])
                arguments = [word for word in words[2:] if not word.startswith(">")]
                known = {option for parameter in command.params for option in parameter.opts}
                assert {word for word in arguments if word.startswith("-")} <= known, where
    assert {"make", "run", "repro", "sample"} <= seen


def test_the_examples_of_pre_training_are_parameters(root: Path) -> None:
    text = (root / "docs" / "pre-training.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    recipe: dict = {}
    for block in blocks:
        if "machine" in block:
            Machine.parse(block["machine"], "docs")
        else:
            recipe |= block
    with pytest.raises(UserError, match="finish_within_seconds"):  # one of them excludes another, and says so
        PretrainRecipe.parse(recipe, "docs")
    del recipe["finish_within_seconds"]
    parsed = PretrainRecipe.parse(recipe, "docs")
    assert parsed.num_steps == 20_000 + 915_528 + 100_000 and len(parsed.schedules) == 2


def test_every_command_has_help() -> None:
    for name, command in cli.commands.items():
        with click.Context(command) as context:
            assert len(command.get_help(context)) > 40, name


def test_every_file_that_is_named_exists(root: Path) -> None:
    for document in documents(root):
        for name in re.findall(
            r"`((?:docs|params|tasks|model|flows|bench|tests)/[\w./-]+\.\w+)`", document.read_text()
        ):
            assert (root / name).exists(), f"{document.name} names {name}"


def test_the_configuration_page_is_up_to_date(root: Path) -> None:
    assert (root / "docs" / "configuration.md").read_text(encoding="utf-8") == render(), "run python -m tasks.reference"


def parameter_files(root: Path) -> list[Path]:
    return [root / "params.yaml", *sorted((root / "params").glob("*.yaml"))]


def test_every_parameter_file_is_valid(root: Path) -> None:
    assert len(parameter_files(root)) >= 4
    for path in parameter_files(root):
        load_params(path)


@pytest.mark.parametrize(
    ("section", "key", "value", "nearest"),
    [
        ("tokenizer", "vocab_sise", 100, "vocab_size"),
        ("finetune", "sedes", [1], "seeds"),
        ("pretrain", "encoder", [], "encoders"),
    ],
)
def test_a_misspelt_key_is_refused(
    root: Path, tmp_path: Path, section: str, key: str, value: object, nearest: str
) -> None:
    import yaml

    content = yaml.safe_load((root / "params.yaml").read_text())
    content[section][key] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=rf"^params.yaml: unknown key '{section}.{key}'; did you mean '{nearest}'\?$"):
        load_params(path)


def test_a_misspelt_recipe_preset_or_benchmark_is_refused(root: Path, tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "params.yaml"
    for change, message in [
        (lambda content: content["finetune"]["recipe"].update(learning_rat=1), "did you mean 'learning_rate'"),
        (lambda content: content["pretrain"]["recipe"].update(weight_deca=1), "did you mean 'weight_decay'"),
        (lambda content: content["pretrain"]["encoders"][0]["shape"].update(preset="bse"), "did you mean 'base'"),
        (lambda content: content["finetune"].update(benchmarks={"colla": None}), "cola"),
    ]:
        content = yaml.safe_load((root / "params.yaml").read_text())
        change(content)
        path.write_text(yaml.safe_dump(content))
        with pytest.raises(UserError, match=message):
            load_params(path)


def test_the_examples_of_ways_to_adapt_are_recipes(root: Path) -> None:
    text = (root / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
    section = text.split("## Ways to adapt")[1].split("\n## ")[0]
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    kinds = [FinetuneRecipe.parse(block, "docs").adapt for block in blocks]
    assert {one.kind for one in kinds} == {"full", "lora", "features"}
    assert kinds.count(LoraAdaptation()) == 2, "the defaults are those that are shown"
    combinations = get_args(Combination)
    assert all(f"| `{name}` |" in section for name in combinations)
