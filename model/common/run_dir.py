"""The run directory of a training job: paths and readers of its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model.common.state_files import read_state, write_state


class RunDir:
    """The files of a pre-training or fine-tuning job.

    Published directories (`build/pretrain/ENCODER`, `build/finetune/ENCODER/BENCHMARK`, and its `jobs/DIGEST`) keep
    some of them under the same names.

    Args:
        path: the directory; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Inputs of the process
        self.pretrain_config = path / "RUN.json"
        self.finetune_config = path / "JOB.json"
        self.handle = path / "handle.json"  # process id and start time
        self.starts = path / "starts.json"  # of a cluster job's ranks since the newest checkpoint
        # Progress
        self.status = path / "status.json"
        self.log = path / "log.txt"
        self.metrics_log = path / "journal.jsonl"
        self.checkpoints = path / "checkpoints"
        # Results; result.json is written last, and only on success
        self.result = path / "result.json"
        self.timing = path / "timing.json"
        self.encoder = path / "encoder"
        self.model = path / "model"
        self.predictions = path / "predictions.jsonl"
        self.errors = path / "errors.json"
        self.outputs = path / "outputs.safetensors"  # raw outputs on dev, for ensembles
        # Only in published directories
        self.metrics = path / "metrics.json"
        self.last_checkpoint = path / "checkpoint"

    def write_result(self, content: Mapping[str, Any], outputs: Iterable[Path] = ()) -> None:
        """Write the result, after the files that belong to it, which it records.

        Args:
            outputs: those files besides the encoder or model.
        """
        folders = [*self.encoder.rglob("*"), *self.model.rglob("*")]
        write_state(self.result, content, [*outputs, *(path for path in folders if path.is_file())])

    def read_result(self, digest: str, with_files: bool = False) -> dict[str, Any] | None:
        """Return the result if it belongs to the job with this digest.

        Args:
            with_files: also check the files that the job wrote before, except for deleted models and outputs.
        """
        removable = [path.name for path in (self.encoder, self.model, self.outputs)]
        result = read_state(self.result, with_files, removable=removable)
        return result if result.get("digest") == digest else None

    def read_status(self) -> dict[str, Any]:
        """Return status.json as the training process last wrote it; empty before that."""
        return read_state(self.status)

    def saved_step(self) -> int:
        """Return the step of the newest checkpoint; 0 without one."""
        steps = [int(path.name.partition("-")[2]) for path in self.checkpoints.glob("step-*")]
        return max(steps, default=0)

    def artifacts(self) -> list[Path]:
        """List the directories that take most of the space and that publishing copies."""
        return [self.checkpoints, self.last_checkpoint, self.encoder, self.model]

    def remove_artifacts(self, keep_model: bool = False) -> None:
        """Delete checkpoints, encoder and model of a published job; its log, metrics and timing stay for `cloze logs`.

        Args:
            keep_model: keep `model/` for jobs that start from it; `cloze gc` deletes it.
        """
        for path in self.artifacts():
            if not (keep_model and path == self.model):
                shutil.rmtree(path, ignore_errors=True)
