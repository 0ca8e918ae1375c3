"""The section `cluster` of params.yaml: where jobs run. No stage depends on it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from model.common.bounds import Count, Line, Processes
from model.common.config_base import Settings, SettingsError
from model.common.errors import UserError

_OURS = (
    "--job-name",
    "-J",
    "--comment",
    "--nodes",
    "-N",
    "--array",
    "-a",
    "--ntasks-per-node",
    "--requeue",
    "--output",
    "-o",
    "--chdir",
)


class JobResources(Settings):
    """Resources of one training job on the cluster, or of the workers of a stage."""

    nodes: Processes = 1
    """Number of nodes."""
    devices: Processes | None = None
    """Processes per node, each with one GPU (or a share of the cores); null uses `machine.num_devices` of the stage.
    For `finetune`, GPUs per node, which its jobs share."""
    partition: Line = ""
    """Slurm partition; empty uses the cluster's default."""
    account: Line = ""
    """Slurm account; empty uses yours."""
    queue: Line = ""
    """Kubernetes: Kueue's LocalQueue that admits the job; empty for a cluster without Kueue."""
    image: Line = ""
    """Kubernetes: image of the nodes, built from the same version of Cloze (infra/image)."""
    time_minutes: Count | None = None
    """Time limit; null for none, or the partition's. On Slurm, the job saves before it ends, is queued again and
    resumes. On Kubernetes, it saves and ends, and the next `cloze run` resumes it."""
    cpus: Processes | None = None
    """CPU cores per node; null uses the cluster's default."""
    memory: Line = ""
    """Memory per node in the cluster's notation (Slurm: 64G, or 0 for all; Kubernetes: 64Gi); empty uses the cluster's
    default."""
    options: tuple[Line, ...] = ()
    """Further options of sbatch, such as --constraint=a100 or --exclusive."""

    @field_validator("options")
    @classmethod
    def _are_not_ours(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option.startswith("-"):
                raise UserError(
                    f"cluster options: expected an option of sbatch such as --constraint=a100, got '{option}'"
                )
            if option.partition("=")[0] in _OURS:
                raise UserError(f"cluster options: Cloze sets {option.partition('=')[0]}; remove it")
        return options


_ONLY_SLURM = ("partition", "account", "options")
_ONLY_KUBERNETES = ("queue", "image")


class ClusterSettings(Settings):
    """Where training jobs run. Changing it runs no stage again, and results do not depend on it."""

    launcher: Literal["local", "slurm", "kubernetes"] = "local"
    """local: on this machine; slurm, kubernetes: `cloze run` submits each job to the cluster, waits for it, and shows
    its progress."""
    python: Line = ""
    """Slurm: the Python interpreter on the nodes; empty uses the path of the one that runs `cloze`."""
    namespace: Line = ""
    """Kubernetes: namespace of the jobs; empty uses that of the run's pod, or of the current context."""
    volume: Line = "project:/work"
    """Kubernetes: claim with the project, and where the run and the nodes mount it, as CLAIM:PATH."""
    pretrain: JobResources = JobResources()
    """Resources of each pre-training job. Encoders without steps are not submitted."""
    finetune: JobResources | None = None
    """Nodes that `cloze run` requests for the fine-tuning stage, whose jobs are distributed over them; null runs the
    jobs on the machine that runs `cloze`."""
    corpus: JobResources | None = None
    """Nodes that `cloze run` requests for cleaning the corpus; null cleans it on the machine that runs `cloze`."""
    pool: Line | None = Field(default=None, pattern=r"^(tcp|tls)://.+")
    """Scheduler address of a running Dask cluster (tcp://host:8786), whose workers clean the corpus and run the
    fine-tuning jobs; null for none."""

    @field_validator("volume")
    @classmethod
    def _has_a_claim_and_a_path(cls, volume: str) -> str:
        claim, _, path = volume.partition(":")
        if not claim or not path.startswith("/"):
            raise UserError(f"cluster.volume: expected CLAIM:PATH such as project:/work, got '{volume}'")
        return volume

    @model_validator(mode="after")
    def _one_place_for_each_stage(self) -> Self:
        for name in ("finetune", "corpus"):
            if getattr(self, name) is None:
                continue
            if self.pool is not None:
                raise UserError(f"cluster.{name}: the stage runs on cluster.pool; remove one of the two")
            if self.launcher == "local":
                raise UserError(
                    f"cluster.{name}: launcher: local starts nothing on other nodes; set launcher, or set pool "
                    "to the address of a running Dask cluster"
                )
        return self

    @model_validator(mode="after")
    def _settings_are_the_launchers(self) -> Self:
        others = {"slurm": _ONLY_KUBERNETES, "kubernetes": _ONLY_SLURM}.get(self.launcher, ())
        for stage in ("pretrain", "finetune", "corpus"):
            wanted = getattr(self, stage)
            for name in [name for name in others if wanted is not None and name in wanted.model_fields_set]:
                text = f"cluster.{stage}.{name}: not a setting of the launcher {self.launcher}; remove it"
                raise SettingsError(((stage, name), text))
            if self.launcher == "kubernetes" and wanted is not None and not wanted.image:
                text = f"cluster.{stage}.image: name the image of the nodes (docs/cluster.md)"
                raise SettingsError(((stage, "image"), text))
        return self
