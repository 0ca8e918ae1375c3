"""What an interval of training steps cost: time, waiting for data, memory, energy; and its share of the peak rate."""

from __future__ import annotations

import math
import time

import psutil
import torch

from model.common.energy import EnergyMeter
from model.config.encoder import EncoderConfig
from model.data.collator import Counts
from model.encoder.flops import matmul_rate, training_flops
from model.engine.fabric import Fabric

_MIB = 2**20


class Meter:
    """Measures from one reading to the next, on the rank that reports.

    Args:
        config: the encoder's shape, for its operations.
        device: what it computes on.
        precision: "fp32" or "bf16", of the products.
        num_ranks: devices that share a step.
    """

    def __init__(self, config: EncoderConfig, device: torch.device, precision: str, num_ranks: int) -> None:
        self._config, self._device = config, device
        # The ranks of one machine's CPU share what was measured with this rank's threads: so many times of it.
        self._peak = matmul_rate(device, precision) * num_ranks
        self._energy = EnergyMeter(device)
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call sets the mark that the next one measures from
        self._joules = 0.0
        self._start()

    def _start(self) -> None:
        self._started = time.perf_counter()
        self._tokens, self._flops, self._waited = 0, 0.0, 0.0

    def add(self, counts: Counts, waited_seconds: float) -> None:
        """A step is done, after whose start the data of the next one took `waited_seconds`."""
        self._tokens += counts.num_tokens
        length = counts.num_tokens / counts.num_sequences
        predictions = counts.num_predictions / counts.num_sequences
        self._flops += training_flops(self._config, counts.num_sequences, length, predictions)
        self._waited += waited_seconds

    def leave_out(self, seconds: float) -> None:
        """These seconds were no training."""
        self._started += seconds

    def joules(self) -> float | None:
        """What the device has used since the meter was made; None where it does not tell."""
        return self._energy.joules()

    def joules_of_all(self, fabric: Fabric, num_nodes: int) -> float | None:
        """The same of all ranks together, whom it has to be asked on; None where one does not tell.

        A CPU's counter is its machine's, so one rank's is enough, and nothing is known of other machines.
        """
        own = self.joules()
        if self._device.type == "cpu":
            return own if num_nodes == 1 else None
        told = torch.tensor([math.nan if own is None else own], dtype=torch.float64, device=self._device)
        total = fabric.all_reduce(told, reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        return None if total.isnan() else total.item()

    def read(self) -> dict[str, float]:
        """The figures since the last reading, by their names in the journal; what cannot be known is left out."""
        seconds = max(1e-9, time.perf_counter() - self._started)
        found = {
            "train/interval_seconds": seconds,
            "train/tokens_per_second": self._tokens / seconds,
            "train/mfu": self._flops / seconds / self._peak,
            "train/data_wait_fraction": self._waited / seconds,
            "system/rss_mib": self._process.memory_info().rss / _MIB,
            "system/cpu_percent": self._process.cpu_percent(),
        }
        if self._device.type == "cuda":
            found["system/gpu_memory_mib"] = torch.cuda.max_memory_allocated(self._device) / _MIB
        joules = self.joules()
        if joules is not None:
            found["system/energy_joules"] = joules
            found["system/power_watts"] = (joules - self._joules) / seconds
            self._joules = joules
        self._start()
        return found
