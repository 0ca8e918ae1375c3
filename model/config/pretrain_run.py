"""RUN.json: one pre-training job, as the process reads it."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from model.common.config_base import Settings
from model.common.errors import UserError
from model.config.encoder import EncoderConfig, EncoderShape
from model.config.hardware import HardwareOptions
from model.config.pretraining import PretrainRecipe


class PretrainRun(Settings):
    """The input of a pre-training process."""

    name: str
    """The encoder's name."""
    digest: str
    """Digest of the job's inputs, recipe, seed and code version; copied into the result."""
    tokens_dir: Path
    """The token store."""
    tokenizer_dir: Path
    """The tokenizer that made it."""
    data_dir: Path | None = None
    """The folder that holds glue/, for probes."""
    run_dir: Path
    """Where the journal, the status, checkpoints, the encoder and the result go."""
    shape: EncoderShape
    """The encoder's sizes."""
    recipe: PretrainRecipe = PretrainRecipe()
    """The recipe."""
    seed: int = Field(default=1, ge=0)
    """Of the initial weights, the order, the masks and the dropout."""
    machine: HardwareOptions = HardwareOptions()
    """Hardware options."""

    def check_phases(self, config: EncoderConfig) -> None:
        """Check that the phases and the kernel fit the encoder and the machine.

        Raises:
            UserError: they do not; the message names the setting.
        """
        if self.machine.attention == "flash" and config.attention_probs_dropout_prob:
            raise UserError(
                f"machine.attention: flash has no dropout of attention, and attention_probs_dropout_prob is "
                f"{config.attention_probs_dropout_prob}; set that to 0, or say auto"
            )
        for index, phase in enumerate(self.recipe.phases):
            where = f"recipe.phases.{index}"
            if phase.sequence_length > config.max_position_embeddings:
                raise UserError(
                    f"{where}.sequence_length: {phase.sequence_length} is more than the encoder's "
                    f"max_position_embeddings ({config.max_position_embeddings})"
                )
            if phase.batch_size % (self.machine.world_size * self.recipe.accumulate):
                raise UserError(
                    f"{where}.batch_size: {phase.batch_size} cannot be split among {self.machine.world_size} ranks "
                    f"and {self.recipe.accumulate} accumulated parts"
                )


def read_run(path: Path) -> PretrainRun:
    """Read RUN.json.

    Raises:
        UserError: the file is missing or invalid.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; give the path of a RUN.json") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    return PretrainRun.parse(values, str(path))
