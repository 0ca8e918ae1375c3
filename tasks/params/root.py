"""params.yaml: every parameter of every stage, in one frozen tree whose parts live beside the code that they steer."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from model.common.config_base import Settings
from model.common.errors import UserError
from tasks.params.checkpoint_sync import MirrorSettings
from tasks.params.corpus import CorpusSettings
from tasks.params.fetch import FetchSettings
from tasks.params.finetune import FinetuneParams
from tasks.params.leaderboard import LeaderboardSettings
from tasks.params.promotion import PromotionSettings
from tasks.pretrain.pretrain import PretrainParams
from tasks.project.yaml_files import read_yaml
from tasks.registry.retrain import RetrainSettings
from tasks.tokens.tokenizer import TokenizerSettings
from tasks.tokens.tokens import TokensSettings


class StageParams(Settings):
    """A section per stage of dvc.yaml: what a run's outputs depend on, and the form of an experiment shows."""

    corpus: CorpusSettings
    """Where text comes from and what of it is kept."""
    tokenizer: TokenizerSettings
    """The vocabulary."""
    tokens: TokensSettings
    """Token arrays, and which documents are held out."""
    pretrain: PretrainParams
    """The encoders and how they are trained."""
    finetune: FinetuneParams
    """The fan-out over benchmarks."""
    leaderboard: LeaderboardSettings = Field(default_factory=LeaderboardSettings)
    """What the leaderboard shows."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = [encoder.name for encoder in self.pretrain.encoders]
        names += [encoder.name for encoder in self.finetune.encoders]
        for name in self.finetune.epochs_factor:
            if name not in names:
                raise UserError(
                    f"params.yaml: finetune.epochs_factor: no encoder '{name}'; there are {', '.join(names)}"
                )
        return self


class Params(StageParams):
    """The whole of params.yaml: a section per stage of dvc.yaml, and what goes on around them."""

    fetch: FetchSettings = Field(default_factory=FetchSettings)
    """What `cloze fetch` brings into data/; no stage depends on it."""
    retrain: RetrainSettings = Field(default_factory=RetrainSettings)
    """When and how to train again; no stage depends on it."""
    promotion: PromotionSettings = Field(default_factory=PromotionSettings)
    """When a new encoder becomes the champion; no stage depends on it."""
    mirror: MirrorSettings | None = None
    """Where checkpoints of pre-training are mirrored to while it runs; no stage depends on it."""


def load_params(path: Path) -> Params:
    """Read and check a parameter file.

    Raises:
        UserError: one line that names the file, the key, what was expected, and the nearest known key.
    """
    return Params.parse(read_yaml(path), path.name)
