"""What a pre-training run is, for the one that goes on from its checkpoint: the same, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from model.common.errors import UserError
from model.config.encoder import EncoderConfig
from model.config.hardware import Hardware
from model.config.pretrain_run import PretrainRun
from model.config.pretraining import KEEPING
from model.engine.checkpoint import Checkpoint
from model.ops.attention_kernels import AttentionKernel
from model.pretrain.report import versions

# What may change between the process that saved a checkpoint and the one that goes on from it.
_KEEPING = KEEPING | {"accumulate"}


class Identity:
    """Decides whether a checkpoint is of this run.

    Args:
        run: the job.
        config: the encoder's shape.
        tokens: the fingerprint of the data.
        hardware: what it computes on.
        compiled: whether under torch.compile.
    """

    def __init__(
        self, run: PretrainRun, config: EncoderConfig, tokens: str, hardware: Hardware, compiled: bool
    ) -> None:
        self._same = {
            "tokens": tokens,
            "seed": run.seed,
            "encoder": config.model_dump(mode="json"),
            "recipe": run.recipe.model_dump(mode="json", exclude=_KEEPING),
        }
        self.kernel: AttentionKernel = "batched"
        """What computes attention, once it is chosen."""
        self._environment = {
            **versions(),
            "threads": torch.get_num_threads(),
            "device": hardware.device,
            "precision": hardware.precision,
            "compiled": compiled,
            "ranks": run.machine.world_size,
            "capability": torch.backends.cpu.get_cpu_capability(),
        }

    def _now(self) -> dict[str, Any]:
        return {**self._environment, "attention": self.kernel}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"identity": self._same, "environment": self._now()}

    def check(self, found: Checkpoint, say: Callable[[str], None]) -> None:
        """Refuse a checkpoint of another run; say what of the environment is another now.

        Raises:
            UserError: naming what differs.
        """
        for name, value in self._same.items():
            if found.state["identity"].get(name) != value:
                raise UserError(
                    f"{found.path}: saved with another {name} than this run has; "
                    "start in an empty folder, or give the run what it had"
                )
        for name, value in self._now().items():
            was = found.state["environment"].get(name)
            if was != value:
                say(f"{name} was {was} and is {value} now: the last bits of the weights may differ")
