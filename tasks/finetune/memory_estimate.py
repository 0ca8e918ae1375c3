"""What memory a job takes: as measured on one like it, before that as estimated from above."""

from __future__ import annotations

from pathlib import Path

from model.common.files import read_json
from model.config.adaptation import FeatureAdaptation
from tasks.finetune.encoder_sources import weight_bytes
from tasks.finetune.ensembles import PlannedEnsemble
from tasks.finetune.plan import Planned
from tasks.jobs.resource_pool import Need

BASE_BYTES = 800 * 2**20  # a process beside its encoder, as the tuned allocator spreads it: 710 MB for 2 layers of 128
COPIES = 5  # of the weights: themselves, gradients, two moments, the file that is saved
_MARGIN = 1.1  # over what was measured: seeds see other batches

Shape = tuple[object, ...]


def shape_of(planned: Planned) -> Shape:
    """Jobs of one shape need the same: encoder, benchmark, and what of the recipe decides a step's size."""
    recipe = planned.job.recipe
    return (
        planned.job.encoder_name,
        planned.job.benchmark,
        recipe.batch_size,
        recipe.max_length,
        recipe.max_train_rows,
        recipe.adapt.model_dump_json(),
        recipe.adapt,
    )


class Needs:
    """What jobs need, and what those that have ended have taught about it."""

    def __init__(self) -> None:
        self._measured: dict[Shape, Need] = {}

    def learn(self, planned: Planned) -> None:
        """Read what an ended job has written of itself."""
        path = planned.run_dir.timing
        measured = measure(path) if path.exists() else None
        if measured is None:
            return
        known = self._measured.get(shape_of(planned), measured)
        self._measured[shape_of(planned)] = Need(
            max(known.memory_bytes, measured.memory_bytes), max(known.device_bytes, measured.device_bytes)
        )

    def of(self, work: Planned | PlannedEnsemble) -> Need:
        """What a job needs."""
        if isinstance(work, PlannedEnsemble):
            return Need(BASE_BYTES)
        return self._measured.get(shape_of(work)) or estimate(work)


def measure(timing_path: Path) -> Need | None:
    """What timing.json tells: the peak, less what was shared with the fork server; None where it tells nothing."""
    timing = read_json(timing_path)
    if "peak_memory_bytes" not in timing:
        return None
    own = max(0, timing["peak_memory_bytes"] - timing.get("shared_memory_bytes", 0))
    return Need(int(_MARGIN * own), int(_MARGIN * timing.get("peak_device_memory_bytes", 0)))


def estimate(planned: Planned) -> Need:
    """From above: copies of the weights, the activations of the longest batch in fp32, and features that are kept."""
    job = planned.job
    config = read_json(job.encoder_dir / "config.json")
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    wide, heads = config["intermediate_size"], config["num_attention_heads"]
    weights = weight_bytes(job.encoder_dir)
    choices = len(job.row.labels) if job.row.head == "choice" else 1
    sequences, length = job.recipe.batch_size * choices, job.recipe.max_length
    per_token = layers * (12 * hidden + 3 * wide + 3 * heads * length)
    needed = COPIES * weights + 4 * sequences * length * per_token
    if isinstance(job.recipe.adapt, FeatureAdaptation):
        needed += job.recipe.adapt.max_feature_bytes
    return Need(BASE_BYTES + needed, needed)
