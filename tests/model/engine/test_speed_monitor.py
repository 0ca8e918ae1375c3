"""What an interval cost: shares between 0 and 1, counters that wrap, and silence where nothing is known."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.common import energy
from model.common.energy import EnergyMeter
from model.config.encoder import EncoderConfig
from model.data.collator import Counts
from model.encoder.flops import published_peak
from model.engine.speed_monitor import SpeedMonitor
from model.engine.trainer import StepResult

CPU = torch.device("cpu")


def test_an_interval_is_measured_and_the_next_begins_anew() -> None:
    config = EncoderConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    meter = SpeedMonitor(config, CPU, "fp32", num_ranks=1)
    meter.read()
    time.sleep(0.05)
    counts = Counts(num_sequences=4, num_predictions=16, num_tokens=100)
    result = StepResult(torch.zeros(1), counts, torch.zeros(()), None, 1e-3, data_seconds=0.01, is_last=False)
    meter.on_step_end(SimpleNamespace(outside_seconds=0.03), result)
    found = meter.read()
    assert 100 / 0.2 < found["train/tokens_per_second"] < 100 / 0.015  # 0.02 s, and what a busy machine adds
    assert 0 < found["train/matmul_utilization"] < 1 and "train/mfu" not in found  # a CPU has no published peak
    assert 0.03 < found["train/data_wait_fraction"] <= 0.7
    assert found["system/rss_mib"] > 50 and "system/gpu_memory_mib" not in found
    assert meter.read()["train/tokens_per_second"] == 0


@pytest.mark.parametrize(
    ("device_name", "precision", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", None),  # another chip than A10, and not in the table
        ("Tesla T4", "bf16", None),  # which it emulates
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
    ],
)
def test_mfu_needs_the_published_peak_of_the_very_device(
    device_name: str, precision: str, teraflops: float | None
) -> None:
    expected = None if teraflops is None else pytest.approx(teraflops * 1e12)
    assert published_peak(device_name, precision) == expected


def test_energy_follows_a_counter_that_wraps_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "max_energy_range_uj").write_text("10000000\n")
    counter = zone / "energy_uj"
    counter.write_text("9000000\n")
    monkeypatch.setattr(energy, "_RAPL", tmp_path)
    meter = EnergyMeter(CPU)
    counter.write_text("9500000\n")
    assert meter.joules() == pytest.approx(0.5)
    counter.write_text("1000000\n")
    assert meter.joules() == pytest.approx(2.0)


def test_where_no_device_tells_there_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_RAPL", tmp_path / "none")
    assert EnergyMeter(CPU).joules() is None
