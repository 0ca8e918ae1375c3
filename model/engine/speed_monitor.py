"""Speed and cost of training: time, waiting for data, memory, energy, and utilization of the device."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from pathlib import Path

import psutil
import torch

from model.common.energy import EnergyMeter
from model.config.encoder import EncoderConfig
from model.encoder.flops import matmul_rate, published_peak, training_flops
from model.engine.trainer import Callback, StepResult, Trainer

_MIB = 2**20
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage


class SpeedMonitor(Callback):
    """Measures an interval of steps at each `read`, on the rank that reports.

    Args:
        precision: "fp32" or "bf16", the precision of matrix products.
        num_ranks: number of devices that share a step.
    """

    def __init__(
        self, config: EncoderConfig, device: torch.device, precision: str, num_ranks: int, num_nodes: int = 1
    ) -> None:
        self._config, self._device, self._num_nodes = config, device, num_nodes
        # The ranks of one machine's CPU share what was measured with this rank's threads: so many times of it.
        self._matmul_rate = matmul_rate(device, precision) * num_ranks
        peak = published_peak(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None
        self._peak = None if peak is None else peak * num_ranks
        self._energy = EnergyMeter(device)
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call starts the interval of the next one
        self._joules_before: float | None = 0.0  # of earlier processes
        self._joules_read = 0.0
        # Energy of all devices up to the last checkpoint, earlier processes included; None if it is not measured
        self.total_joules: float | None = 0.0
        self._outside = 0.0  # seconds that do not count, as of the last step
        self._start()

    def _start(self) -> None:
        self._started = time.perf_counter() - self._outside
        self._tokens, self._flops, self._waited = 0, 0.0, 0.0

    def on_train_start(self, trainer: Trainer) -> None:
        self._outside = trainer.outside_seconds
        self._start()

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        counts = result.counts
        self._tokens += counts.num_tokens
        length = counts.num_tokens / counts.num_sequences
        predictions = counts.num_predictions / counts.num_sequences
        self._flops += training_flops(self._config, counts.num_sequences, length, predictions)
        self._waited += result.data_seconds
        self._outside = trainer.outside_seconds

    def resume(self, joules: float | None) -> None:
        """Continue the energy count of earlier processes."""
        self._joules_before = self.total_joules = joules

    def at_checkpoint(self, trainer: Trainer) -> None:
        """Update `total_joules`. Every rank has to call this.

        The counter of a CPU belongs to its machine, so one rank's is enough, and other machines' are unknown.
        """
        spent = self._energy.joules()
        if self._device.type == "cpu":
            spent = spent if self._num_nodes == 1 else None
        else:
            own = torch.tensor([math.nan if spent is None else spent], dtype=torch.float64, device=self._device)
            [total] = trainer.all_ranks(own)
            spent = None if math.isnan(total) else total
        self.total_joules = None if spent is None or self._joules_before is None else self._joules_before + spent

    def read(self) -> dict[str, float]:
        """The measurements since the last reading by their metric names; unknown ones are left out."""
        seconds = max(1e-9, time.perf_counter() - self._outside - self._started)
        found = {
            "train/interval_seconds": seconds,
            "train/tokens_per_second": self._tokens / seconds,
            "train/matmul_utilization": self._flops / seconds / self._matmul_rate,
            "train/data_wait_fraction": self._waited / seconds,
            "system/rss_mib": self._process.memory_info().rss / _MIB,
            "system/cpu_percent": self._process.cpu_percent(),
        }
        if self._peak is not None:
            found["train/mfu"] = self._flops / seconds / self._peak
        if self._device.type == "cuda":
            found["system/gpu_memory_mib"] = torch.cuda.max_memory_allocated(self._device) / _MIB
        joules = self._energy.joules()
        if joules is not None:
            found["system/energy_joules"] = joules
            found["system/power_watts"] = (joules - self._joules_read) / seconds
            self._joules_read = joules
        self._start()
        return found


class Cost:
    """Cost of a process: CPU time and memory since its start (its fork), energy since this object was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._energy = EnergyMeter(device)
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def so_far(self) -> dict[str, float]:
        """Entries of timing.json. A CPU's energy counter is that of the whole package: the process is charged its share
        of the cores' time."""
        cpu_seconds = time.process_time()
        found = {
            "cpu_seconds": cpu_seconds,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
            "shared_memory_bytes": _shared_bytes(),
        }
        if self._device.type == "cuda":
            found["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated(self._device)
        if (joules := self._energy.joules()) is not None:
            available = (time.monotonic() - self._started) * (os.cpu_count() or 1)
            share = min(1.0, (cpu_seconds - self._cpu_started) / max(available, 1e-9))
            found["energy_joules"] = joules * share if self._device.type == "cpu" else joules
        return found


def _shared_bytes() -> int:
    """Resident bytes shared with other processes: libraries, and memory that a fork has not written to.

    0 on systems other than Linux.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Shared_Clean:", "Shared_Dirty:")))
