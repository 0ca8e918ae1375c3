"""What `auto` means, and which runs are compiled."""

from __future__ import annotations

import pytest
import torch

from model.common.errors import UserError
from model.config.encoder import EncoderShape
from model.config.hardware import COMPILE_REPAYS_AFTER_SECONDS, Hardware, HardwareOptions, is_compiled, resolve
from model.config.pretraining import PretrainRecipe
from model.encoder.flops import planned_seconds, training_flops


def test_auto_is_decided() -> None:
    hardware = resolve(HardwareOptions(accelerator="cpu"))
    assert hardware.accelerator == "cpu" and hardware.strategy == "single"
    assert hardware.precision in ("fp32", "bf16") and hardware.num_threads >= 1
    assert resolve(HardwareOptions(accelerator="cpu", num_devices=2)).strategy == "ddp"


def test_what_is_said_is_kept() -> None:
    hardware = resolve(HardwareOptions(accelerator="cpu", precision="bf16", num_threads=3))
    assert (hardware.precision, hardware.num_threads) == ("bf16", 3)


def test_single_runs_one_process() -> None:
    with pytest.raises(UserError, match="set it to ddp"):
        resolve(HardwareOptions(accelerator="cpu", strategy="single", num_devices=2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="torch finds no GPU"):
        resolve(HardwareOptions(accelerator="gpu"))


def test_flops_are_six_per_weight_and_token() -> None:
    config = EncoderShape(preset="base").build(30_522)
    layers = 12 * 12 * 768 * 768
    found = training_flops(config, batch_size=1, length=512, num_predictions=511)  # all positions wanted
    expected = 6 * 512 * layers + 6 * 12 * 2 * 512 * 512 * 768 + 6 * 511 * (768 * 30_522 + 768 * 768)
    assert found == pytest.approx(expected, rel=1e-9)
    assert training_flops(config, 1, 512, 77) < 0.8 * found


def test_compiling_is_for_long_runs() -> None:
    hardware = Hardware("cpu", "single", "fp32", 2, "cpu")
    config = EncoderShape(preset="tiny").build(2000)

    def recipe(num_steps: int) -> PretrainRecipe:
        phase = {"sequence_length": 64, "batch_size": 64, "num_steps": num_steps, "learning_rate": 1e-3}
        return PretrainRecipe.parse({"phases": [phase], "warmup_steps": 1}, "test")

    short, long = (planned_seconds(config, recipe(steps), hardware) for steps in (100, 1_000_000))
    assert short < COMPILE_REPAYS_AFTER_SECONDS < long
    gpu = Hardware("gpu", "single", "bf16", 2, "cuda")
    assert not is_compiled(HardwareOptions(), gpu, short) and is_compiled(HardwareOptions(), gpu, long)
    assert is_compiled(HardwareOptions(compile="on"), hardware, short)
    assert not is_compiled(HardwareOptions(compile="off"), hardware, long)
