"""The section `cluster` of params.yaml: where training jobs run. No stage depends on it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from model.common.config_base import Settings
from model.common.errors import UserError

_OURS = (
    "--job-name",
    "-J",
    "--comment",
    "--nodes",
    "-N",
    "--ntasks-per-node",
    "--requeue",
    "--output",
    "-o",
    "--chdir",
)


class JobResources(Settings):
    """Resources of one training job on the cluster."""

    nodes: int = Field(default=1, ge=1)
    """Number of nodes."""
    devices: int | None = Field(default=None, ge=1)
    """Processes per node, each with one GPU (or a share of the cores); null uses `machine.num_devices` of the stage."""
    partition: str = ""
    """Slurm partition; empty uses the cluster's default."""
    account: str = ""
    """Slurm account; empty uses yours."""
    time_minutes: int | None = Field(default=None, ge=1)
    """Time limit; null uses the partition's. Before it ends, the job saves, is queued again and resumes."""
    cpus: int | None = Field(default=None, ge=1)
    """CPU cores per node; null uses the cluster's default."""
    memory: str = ""
    """Memory per node as Slurm spells it (64G; 0 for all); empty uses the cluster's default."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, such as --constraint=a100 or --exclusive."""

    @field_validator("options")
    @classmethod
    def _are_not_ours(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option.startswith("-") or "\n" in option:
                raise UserError(
                    f"cluster options: expected an option of sbatch such as --constraint=a100, got '{option}'"
                )
            if option.partition("=")[0] in _OURS:
                raise UserError(f"cluster options: Cloze sets {option.partition('=')[0]}; remove it")
        return options


class ClusterSettings(Settings):
    """Where training jobs run. Changing it runs no stage again, and results do not depend on it."""

    launcher: Literal["local", "slurm"] = "local"
    """local: on this machine; slurm: `cloze run` submits each job with sbatch, waits for it, and shows its progress."""
    python: str = ""
    """The Python interpreter on the nodes; empty uses the path of the one that runs `cloze`."""
    pretrain: JobResources = JobResources()
    """Resources of each pre-training job. Encoders without steps are not submitted."""
