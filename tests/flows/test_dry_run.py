"""`cloze run --dry-run`: what would run and why, with all mistakes, and not a single file written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.clone import Clone

pytestmark = pytest.mark.slow

OURS = (".dvc/tmp", ".cloze/dvc", ".tools")  # DVC's own state, and the test's


def files(clone: Clone) -> dict[str, tuple[int, int]]:
    found = {}
    for path in clone.root.rglob("*"):
        name = path.relative_to(clone.root).as_posix()
        if not name.startswith(OURS):
            stat = path.lstat()
            found[name] = (stat.st_size if path.is_file() else 0, stat.st_mtime_ns if path.is_file() else 0)
    return found


def test_it_counts_jobs_gives_reasons_and_writes_nothing(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    before = files(clone)
    assert clone.run("cloze", "run", "--dry-run").splitlines()[-1] == "nothing would run"
    clone.params(lambda content: content["finetune"].update(seeds=[1, 2]))
    seeds = clone.run("cloze", "run", "--dry-run")
    assert "finetune     would run: finetune.seeds: [1] → [1, 2]\n" in seeds
    assert "leaderboard  would run: follows finetune\n" in seeds
    assert "2 of 6 stages, 26 of 52 fine-tuning jobs (2 encoders × 13 benchmarks × 2 seeds); about " in seeds
    clone.params(lambda content: content["pretrain"]["encoders"][0].update(seed=5))
    pretrain = clone.run("cloze", "run", "--dry-run")
    assert "pretrain     would run: pretrain.encoders.pretrained.seed: (default) → 5\n" in pretrain
    # All jobs of the new encoder, and the second seed of the other one.
    assert "3 of 6 stages, 1 encoder to pre-train (pretrained), 39 of 52 fine-tuning jobs" in pretrain
    after = files(clone)
    del before["params.yaml"], after["params.yaml"]
    assert after == before


def test_with_other_parameters_or_other_data(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    content = yaml.safe_load((clone.root / "params.yaml").read_text())
    content["tokens"]["heldout_fraction"] = 0.05
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(content))
    (clone.root / "data" / "books" / "new.txt").write_text("Chapter 1\n\nA new book begins here. It is short.\n")
    before = files(clone)
    assert "data/ differs from its pin" in clone.run("cloze", "run", "--dry-run", code=2)
    said = clone.run("cloze", "run", "--dry-run", "--accept-data")
    assert "corpus       would run: deps: data/books modified\n" in said
    assert "tokens       would run if the output of corpus or tokenizer changes\n" in said
    assert said.splitlines()[-1].startswith("at most 6 of 6 stages"), "the new corpus may equal the old one"
    (clone.root / "data" / "books" / "new.txt").unlink()
    said = clone.run("cloze", "run", "--dry-run", "--params", str(other))
    assert "corpus       up to date" in said
    assert "tokens       would run: tokens.heldout_fraction: 0.02 → 0.05\n" in said
    assert "52" not in said and "26 fine-tuning jobs (2 encoders × 13 benchmarks)" in said
    assert clone.run("cloze", "run", "--dry-run", "--set", "tokens.heldout_fraction=0.05") == said
    wrong = clone.run("cloze", "run", "--set", "tokens.heldout_part=0.05", code=2)
    assert wrong.startswith("cloze: params.yaml with overrides: unknown key 'tokens.heldout_part'; did you mean ")
    assert "'0.05': expected a setting and its value" in clone.run("cloze", "run", "--set", "0.05", code=2)
    after = files(clone)
    del before["data/books/new.txt"]
    assert after == before


def test_all_mistakes_at_once(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    (clone.root / "data" / "mytext").mkdir()
    (clone.root / "data" / "mytext" / "a.txt").write_text("Some text of mine. It is prose.\n")
    tasks = clone.root / "data" / "tasks"
    (tasks / "mood.csv").write_text("text,mood\nfine,good\nawful,bad\n")
    (tasks / "mood.yaml").write_text(
        "head: classes\ntrain: mood.csv\ndev: mood.csv\ncolumns: {first: txt, label: mood}\n"
    )

    def change(content: dict[str, Any]) -> None:
        content["corpus"]["sources"].append({"name": "mine", "kind": "text", "path": "mytext"})
        content["corpus"]["sources"].append({"name": "gone", "kind": "text", "path": "books/gone"})
        content["finetune"]["tasks"] = ["tasks/mood.yaml"]
        content["finetune"]["benchmarks"] = {"rte": {"recipe": {"max_length": 1024}}}

    clone.params(change)
    for command in (("cloze", "run", "--dry-run", "--accept-data"), ("cloze", "run", "--accept-data")):
        said = [line for line in clone.run(*command, code=2).splitlines() if line.startswith("cloze: ")]
        assert len(said) == 4, said
        assert said[0] == "cloze: dvc.yaml: corpus reads data/mytext; add `- data/mytext` to the deps of that stage"
        assert said[1].startswith("cloze: corpus reads data/books/gone, which does not exist; data/books contains ")
        assert "mood.csv" in said[2] and "'txt'" in said[2]
        assert "rte: max_length 1024 is more than the 512 positions of pretrained, scratch" in said[3]
    assert not list((clone.root / "build" / "runs" / "staging").iterdir())


def test_a_tracked_source_counts(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    path = clone.root / "dvc.yaml"
    path.write_text(path.read_text().replace("      - data/books\n", "      - data/books\n      - data/mytext\n", 1))
    text = clone.root / "data" / "mytext" / "a.txt"
    text.parent.mkdir()
    text.write_text("Some text of mine. It is prose.\n")
    clone.params(
        lambda content: content["corpus"]["sources"].append({"name": "mine", "kind": "text", "path": "mytext"})
    )
    clone.run("cloze", "run", "--dry-run", "--accept-data")
    said = clone.run("cloze", "doctor", code=0)
    assert "every input is tracked" in " ".join(said.split())  # how wide the table is depends on the machine
