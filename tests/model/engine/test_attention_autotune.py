"""The kernel of attention is the fastest that gives what the reference gives; others are left out and said so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from model.common.errors import UserError
from model.config.encoder import EncoderConfig
from model.config.hardware import Hardware, HardwareOptions, resolve
from model.config.pretraining import PretrainRun, check_phases
from model.engine import attention_autotune
from model.engine.attention_autotune import Case, candidates, fastest
from model.ops.attention_kernels import KERNELS

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

CONFIG = EncoderConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
CASES = [Case(4, 16, 900), Case(2, 40, 100)]
CPU, GPU = (Hardware(kind, "single", "bf16", 1, device) for kind, device in (("cpu", "cpu"), ("gpu", "cuda")))


@pytest.fixture(autouse=True)
def _flex_trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    torch._dynamo.reset()  # what other tests compiled, flex_attention's plain form among it


def choice(said: list[str]) -> str:
    return fastest(("batched", "flex"), CONFIG, CASES, False, torch.device("cpu"), said.append)


def take(monkeypatch: pytest.MonkeyPatch, seconds: dict[tuple[str, int], float]) -> None:
    """Let a trial of a kernel on so long sequences report these seconds."""
    original = attention_autotune.try_kernel

    def told(kernel: Any, config: Any, case: Case, *rest: Any) -> tuple[list[Tensor], float]:
        return original(kernel, config, case, *rest)[0], seconds[kernel, case.length]

    monkeypatch.setattr(attention_autotune, "try_kernel", told)


def test_the_faster_over_all_phases_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for long, expected in ((4.0, "batched"), (20.0, "flex")):  # 900 short steps, 100 long ones
        take(monkeypatch, {("batched", 16): 1.0, ("batched", 40): long, ("flex", 16): 2.0, ("flex", 40): 5.0})
        said: list[str] = []
        assert choice(said) == expected
        assert len(said) == 1 and said[0].startswith(
            f"attention: {expected} (time of a layer's attention: batched 1.00"
        )
        monkeypatch.undo()
        monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


def test_what_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Tensor:
        raise RuntimeError("no such kernel\nmore")

    monkeypatch.setattr("model.encoder.attention.flex_kernel", fail)
    said: list[str] = []
    assert choice(said) == "batched"
    assert said[0] == "attention: flex does not run here (RuntimeError: no such kernel)"


def test_what_is_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, {(kernel, length): 1.0 + (kernel == "batched") for kernel in KERNELS for length in (16, 40)})
    monkeypatch.setattr("model.ops.attention_kernels._DROPPED_SCORE", 0.0)  # drops nothing any more
    said: list[str] = []
    assert choice(said) == "batched"
    assert "flex is left out, it differs from batched by" in said[0]


def test_what_can_be_tried() -> None:
    without = CONFIG.model_copy(update={"attention_probs_dropout_prob": 0.0})
    precise = Hardware("gpu", "single", "fp32", 1, "cuda")
    assert candidates(without, CPU, True) == ("batched",)
    assert candidates(CONFIG, GPU, True) == ("batched", "flex")
    assert candidates(without, GPU, True) == ("batched", "flex", "flash")
    assert candidates(without, GPU, False) == ("batched", "flash")
    assert candidates(without, precise, False) == ("batched",)
    assert fastest(candidates(without, CPU, False), without, CASES, False, torch.device("cpu"), print) == "batched"


def test_kernels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="flash requires a GPU"):
        resolve(HardwareOptions(accelerator="cpu", attention="flash"))
    values = {"name": "x", "digest": "x", "tokens_dir": "t", "tokenizer_dir": "t", "run_dir": "r", "shape": {}}
    run = PretrainRun.parse({**values, "machine": {"attention": "flash"}}, "RUN.json")
    with pytest.raises(UserError, match="attention_probs_dropout_prob is 0.1; set it to 0"):
        check_phases(run.recipe, run.machine, CONFIG)
