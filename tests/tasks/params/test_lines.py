"""Mistakes in params.yaml name the setting and the line that it is written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.params.root import load_params

CONTENT = """\
corpus:
  sources:
    - {name: mine, kind: text, path: mine}
tokenizer: {}
tokens: {}
pretrain:
  recipe:
    betas: [0.9, 0.98]
    warmup_steps: 3
  encoders:
    - name: first
      shape: &shape
        max_position_embeddings: 512
        preset: tiny
    - name: second
      shape: *shape
      recipe:
        weight_decay: 0.1
finetune:
  seeds: [1]
  benchmarks:
    rte:
      recipe:
        dropout: 0.1
    sst2:
  grid:
    weight_decay: [0, 0.01]
    learning_rate: [1.0e-3,
      2.0e-3]
  recipe:
    num_epochs: 3
"""


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        (
            "learning_rate: [1",
            "learning_rates: [1",
            "28: unknown key 'finetune.grid.learning_rates'; did you mean 'learning_rate'?",
        ),
        ("2.0e-3]", "-1]", "29: finetune.grid.learning_rate.1: Input should be greater than 0, got -1"),
        (
            "num_epochs: 3",
            "num_epochs: three",
            "31: finetune.recipe.num_epochs: Input should be a valid integer, unable to parse string as an integer,"
            " got 'three'",
        ),
        (
            "num_epochs: 3",
            "num_epoch: 3\n    batch_sise: 3",
            "31: unknown key 'finetune.recipe.num_epoch'; did you mean 'num_epochs'?\n"
            "32: unknown key 'finetune.recipe.batch_sise'; did you mean 'batch_size'?",
        ),
        (
            "        dropout:",
            "        dropuot:",
            "24: unknown key 'finetune.benchmarks.rte.recipe.dropuot'; did you mean 'dropout'?",
        ),
        ("    sst2:", "    sst-2:", "25: unknown benchmark 'sst-2'; did you mean 'sst2'?"),
        ("    sst2:", "    sst2: {after: mnli}", "25: finetune.benchmarks.sst2.after: mnli is not in"),
        ("seeds: [1]", "seeds: [1, 1]", "20: finetune.seeds: [1, 1] contains a seed twice"),
        (
            "warmup_steps: 3",
            "warmup_step: 3",
            "9: unknown key 'pretrain.recipe.warmup_step'; did you mean 'warmup_steps'?",
        ),
        ("weight_decay: 0.1", "weight_decay: -1", "18: pretrain.encoders.1.recipe.weight_decay: Input should be"),
        ("preset: tiny", "preset: tinny", "14: preset: unknown encoder preset 'tinny'; did you mean 'tiny'?"),
        ("name: second", "name: first", "15: pretrain.encoders: two encoders are named 'first'"),
        ("kind: text", "kind: txt", "3: corpus.sources.0.kind: unknown 'txt'; expected one of mediawiki"),
    ],
)
def test_the_line_is_that_of_the_key(tmp_path: Path, old: str, new: str, messages: str) -> None:
    path = tmp_path / "params.yaml"
    assert CONTENT.count(old) == 1
    path.write_text(CONTENT.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_params(path)
    found, expected = str(caught.value).splitlines(), messages.splitlines()
    assert len(found) == len(expected), found
    for line, start in zip(found, expected):
        assert line.startswith(f"params.yaml:{start}"), line


@pytest.mark.parametrize("benchmarks", ["{}", "{tickets: }"])
def test_the_common_recipe_is_checked_without_a_benchmark_of_the_table(tmp_path: Path, benchmarks: str) -> None:
    path = tmp_path / "params.yaml"
    before, _, after = CONTENT.partition("  benchmarks:\n")
    after = after[after.index("  grid:") :].replace("num_epochs", "num_epoch")
    path.write_text(f"{before}  tasks: [tasks/tickets.yaml]\n  benchmarks: {benchmarks}\n{after}")
    with pytest.raises(UserError, match=r"^params.yaml:28: unknown key 'finetune.recipe.num_epoch'; did you mean \S+$"):
        load_params(path)
