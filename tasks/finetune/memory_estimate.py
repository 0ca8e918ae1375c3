"""Memory of a fine-tuning job: measured on a finished job of the same shape, else an upper estimate."""

from __future__ import annotations

from pathlib import Path

from model.benchmarks.head_specs import HEAD_SPECS
from model.common.files import read_json
from model.config.adaptation import FeatureAdaptation
from tasks.finetune.encoder_sources import weight_bytes
from tasks.finetune.plan import PlannedFinetune
from tasks.finetune.results import PlannedEnsemble
from tasks.jobs.resources import MemoryEstimate

BASE_BYTES = 800 * 2**20  # a process without its encoder
COPIES = 5  # of the weights: parameters, gradients, two moments, the file being saved
_MARGIN = 1.1  # over the measurement, since other seeds see other batches


def _shape_of(planned: PlannedFinetune) -> tuple[object, ...]:
    """Key of jobs that need the same memory: encoder, benchmark, and the recipe settings that affect a step's size."""
    recipe = planned.job.recipe
    return (
        planned.job.encoder_name,
        planned.job.benchmark,
        recipe.batch_size,
        recipe.max_length,
        recipe.max_train_rows,
        recipe.adapt,
    )


class MemoryEstimator:
    """Estimates jobs' memory, and improves the estimates with measurements of finished jobs."""

    def __init__(self) -> None:
        self._measured: dict[tuple[object, ...], MemoryEstimate] = {}

    def learn(self, planned: PlannedFinetune) -> None:
        """Read the peak memory of a finished job."""
        path = planned.run_dir.timing
        measured = measure(path) if path.exists() else None
        if measured is None:
            return
        shape = _shape_of(planned)
        known = self._measured.get(shape, measured)
        self._measured[shape] = MemoryEstimate(
            max(known.memory_bytes, measured.memory_bytes), max(known.device_bytes, measured.device_bytes)
        )

    def estimate(self, work: PlannedFinetune | PlannedEnsemble) -> MemoryEstimate:
        """Return the memory of a job."""
        if isinstance(work, PlannedEnsemble):
            return MemoryEstimate(BASE_BYTES)
        return self._measured.get(_shape_of(work)) or estimate(work)


def measure(timing_path: Path) -> MemoryEstimate | None:
    """Read the peak memory in timing.json, without memory shared with the fork server; None if it is not recorded."""
    timing = read_json(timing_path)
    if "peak_memory_bytes" not in timing:
        return None
    own = max(0, timing["peak_memory_bytes"] - timing.get("shared_memory_bytes", 0))
    return MemoryEstimate(int(_MARGIN * own), int(_MARGIN * timing.get("peak_device_memory_bytes", 0)))


def estimate(planned: PlannedFinetune) -> MemoryEstimate:
    """Upper estimate: copies of the weights, fp32 activations of the longest batch, and cached features."""
    job = planned.job
    config = read_json(job.encoder_dir / "config.json")
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    wide, heads = config["intermediate_size"], config["num_attention_heads"]
    weights = weight_bytes(job.encoder_dir)
    sequences = job.recipe.batch_size * HEAD_SPECS[job.row.head].sequences_per_row(job.row)
    length = job.recipe.max_length
    per_token = layers * (12 * hidden + 3 * wide + 3 * heads * length)
    needed = COPIES * weights + 4 * sequences * length * per_token
    if isinstance(job.recipe.adapt, FeatureAdaptation):
        needed += job.recipe.adapt.max_feature_bytes
    return MemoryEstimate(BASE_BYTES + needed, needed)
