"""The documentation matches the code: commands, links, files, packages, parameters and examples."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import get_args

import click
import pytest
import yaml

from flows.cli.main import cli
from model.common.errors import UserError
from model.config.finetuning import Combination, FinetuneRecipe, LoraAdaptation
from model.config.hardware import WAITING, HardwareOptions
from model.config.pretraining import PretrainRecipe
from tasks.params.reference import render
from tasks.params.root import Params, PretrainParams, load_params
from tasks.project import environment
from tasks.tracking.tracking import STAGES


def commands(text: str) -> list[list[str]]:
    """Return the shell commands of the bash blocks, without comments, and the `cloze` commands in inline code."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    within = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines += [" ".join(found.split()) for found in re.findall(r"`(cloze [^`]+)`", within)]
    parts = [part.strip() for line in lines for part in re.split(r"&&|\||;", line)]
    return [part.split() for part in parts if part]


def documents(root: Path) -> list[Path]:
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    return [*pages, *sorted((root / "infra").rglob("README.md"))]


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub generates from the headings."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def test_every_command_in_the_documentation_exists(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    seen = set()
    for document in documents(root):
        for words in commands(document.read_text(encoding="utf-8")):
            where = f"{document.name}: {' '.join(words)}"
            if words[0] == "make":
                assert set(words[1:]) <= targets, where
                seen.add("make")
            elif words[0].endswith("cloze") and not words[1].startswith(("<", "-")):
                command = cli.commands.get(words[1].strip(".,"))
                assert command is not None, where
                seen.add(command.name)
                arguments = [word.rstrip("]…").lstrip("[").partition("=")[0] for word in words[2:]]
                known = {
                    option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
                }
                assert {word for word in arguments if re.match(r"--?[a-z]", word)} <= known, where
    assert "make" in seen and seen >= set(cli.commands) - set(STAGES)


def test_readme_lists_every_command_and_every_page(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `cloze ")]
    named = {
        found.split()[1 if found.startswith("cloze ") else 0] for row in rows for found in re.findall(r"`([^`]+)`", row)
    }
    assert named == set(cli.commands)
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", text))
    assert linked == {path.relative_to(root).as_posix() for path in (root / "docs").glob("*.md")}


def test_every_link_and_anchor_exists(root: Path) -> None:
    count = 0
    for document in (*documents(root), root / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
            if target.startswith(("https://", "http://")):
                continue
            name, _, anchor = target.partition("#")
            path = (document.parent / name).resolve() if name else document
            assert path.exists(), f"{document.name}: {target}"
            assert not anchor or anchor in anchors(path), f"{document.name}: {target}"
            count += 1
    assert count > 40


def test_the_pre_training_examples_are_valid_parameters(root: Path) -> None:
    text = (root / "docs" / "pre-training.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    recipe: dict = {}
    sections: dict = {}
    for block in blocks:
        if "tokenizer" in block:
            sections |= block
            [encoder] = Params.parse(sections, "docs").pretrain.encoders
            assert encoder.start is not None
        elif "pretrain" in block:
            PretrainParams.parse(block["pretrain"], "docs")
        elif "machine" in block:
            HardwareOptions.parse(block["machine"], "docs")
        else:
            recipe |= block
    with pytest.raises(UserError, match="finish_within_seconds"):  # not together with restart
        PretrainRecipe.parse(recipe, "docs")
    del recipe["finish_within_seconds"]
    parsed = PretrainRecipe.parse(recipe, "docs")
    assert parsed.num_steps == 20_000 + 915_528 + 100_000 and len(parsed.schedules) == 2


def test_every_command_has_help() -> None:
    for name, command in cli.commands.items():
        with click.Context(command) as context:
            assert len(command.get_help(context)) > 40, name


def test_every_file_in_the_documentation_exists(root: Path) -> None:
    for document in documents(root):
        for name in re.findall(
            r"(?<![\w/])((?:docs|params|model|flows|bench|tests|infra)/[\w./-]+\.\w+|tasks/[\w./-]+\.py)\b",
            document.read_text(encoding="utf-8"),
        ):
            assert (root / name).exists(), f"{document.name} names {name}"


def test_the_python_examples_import_what_exists(root: Path) -> None:
    found = 0
    for document in documents(root):
        for block in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom):
                    module = importlib.import_module(str(node.module))
                    for alias in node.names:
                        assert hasattr(module, alias.name), f"{document.name}: {node.module}.{alias.name}"
                        found += 1
    assert found >= 6


def test_the_messages_in_the_troubleshooting_table_exist(root: Path) -> None:
    table = (root / "docs" / "operations.md").read_text(encoding="utf-8").split("## Troubleshooting")[1]
    quoted = [text for line in table.splitlines() for text in re.findall(r'"([^"]+)"|says \*([^*]+)\*', line)]
    code = "\n".join(
        file.read_text(encoding="utf-8") for name in ("flows", "tasks") for file in (root / name).rglob("*.py")
    )
    assert len(quoted) >= 7
    for message in ("".join(both) for both in quoted):
        assert message in code, message


def test_the_registries_in_contributing_exist(root: Path) -> None:
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"((?:`\w+`(?: and )?)+) in ((?:model|tasks|flows)/[\w/]+\.py)", text)
    assert len(found) >= 6
    for names, path in found:
        for name in re.findall(r"\w+(?=`)", names):
            assert re.search(rf"\b{name}\b", (root / path).read_text(encoding="utf-8")), f"{path}: {name}"


def test_the_architecture_page_shows_the_packages_on_disk(root: Path) -> None:
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.split("## Directory tree")[1].split("```")[1]
    shown: list[str] = []
    parents: list[str] = []
    for line in tree.strip().splitlines():
        found = re.fullmatch(r"( *)(\w+)/ +(\S.*)", line)
        assert found, f"one package per line, with its purpose: {line}"
        parents = [*parents[: len(found[1]) // 2], found[2]]
        shown.append("/".join(parents))
    on_disk = {
        file.parent.relative_to(root).as_posix()
        for package in ("cloze", "flows", "tasks", "model")
        for file in (root / package).rglob("__init__.py")
    }
    assert len(set(shown)) == len(shown) and set(shown) == on_disk


@pytest.mark.parametrize("top", ["model", "tasks", "flows"])
def test_packages_import_in_the_order_of_the_architecture_page(root: Path, top: str) -> None:
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    [order] = re.findall(rf"^\| `{top}` \| (.+) \|$", text, re.MULTILINE)
    rank = {name: number for number, name in enumerate(re.findall(r"\w+", order))}
    children = {path.stem for path in (root / top).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(rank) == children - {"__init__"}
    broken = []
    for file in (root / top).rglob("*.py"):
        importer = file.relative_to(root).with_suffix("").parts[1]
        if importer == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for imported in {name.split(".")[1] for name in names if name.startswith(f"{top}.")}:
                if rank[imported] > rank[importer]:
                    broken.append(f"{file.relative_to(root)} imports {top}.{imported}")
    assert not broken


def test_the_glossary_is_in_alphabetical_order(root: Path) -> None:
    text = (root / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [line.split("|")[1].strip().lower() for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(terms) > 60 and terms == sorted(set(terms))


def test_the_configuration_page_is_up_to_date(root: Path) -> None:
    assert (root / "docs" / "configuration.md").read_text(encoding="utf-8") == render(), (
        "run python -m tasks.params.reference"
    )


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
def test_a_misspelled_key_is_rejected(
    root: Path, tmp_path: Path, section: str, key: str, value: object, nearest: str
) -> None:
    import yaml

    content = yaml.safe_load((root / "params.yaml").read_text())
    content[section][key] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(
        UserError, match=rf"^params.yaml:\d+: unknown key '{section}.{key}'; did you mean '{nearest}'\?$"
    ):
        load_params(path)


def test_a_misspelled_recipe_preset_or_benchmark_is_rejected(root: Path, tmp_path: Path) -> None:
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


def test_the_examples_of_adaptation_methods_are_recipes(root: Path) -> None:
    text = (root / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
    section = text.split("## Adaptation methods")[1].split("\n## ")[0]
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    kinds = [FinetuneRecipe.parse(block, "docs").adapt for block in blocks]
    assert {one.kind for one in kinds} == {"full", "lora", "features"}
    assert kinds.count(LoraAdaptation()) == 2, "the defaults are those that are shown"
    combinations = get_args(Combination)
    assert all(f"| `{name}` |" in section for name in combinations)


def test_the_environment_page_lists_every_variable(root: Path) -> None:
    page = (root / "docs" / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([A-Z_]+)`", page))
    files = [root / "prefect.yaml", *(path for path in (root / "infra").rglob("*") if path.is_file())]
    for name in ("cloze", "flows", "tasks", "model", "bench", "tests"):
        files += (root / name).rglob("*.py")
    code = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    ours = set(re.findall(r"\b_?CLOZE_[A-Z_]*[A-Z]", code))
    assert ours == {name for name in listed if "CLOZE_" in name}
    packages = [path for name in ("cloze", "flows", "tasks", "model") for path in (root / name).rglob("*.py")]
    product = "\n".join(path.read_text(encoding="utf-8") for path in packages)
    read = set(re.findall(r"os\.environ(?:\.\w+)?[\[(]\"([A-Z_]+)\"", product))
    assert {*environment._BEHAVIOR, *environment.TUNED_ALLOCATOR, *WAITING} | read <= listed
