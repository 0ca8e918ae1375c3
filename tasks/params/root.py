"""params.yaml: the parameters of all stages in one frozen tree."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from model.common.config_base import Settings
from model.common.errors import UserError
from tasks.params.checkpoint_sync import CheckpointSyncSettings
from tasks.params.corpus import CorpusSettings
from tasks.params.fetch import FetchSettings
from tasks.params.finetune import FinetuneParams
from tasks.params.leaderboard import LeaderboardSettings
from tasks.params.pretrain import PretrainParams
from tasks.params.promotion import PromotionSettings, RetrainSettings
from tasks.params.tokens import TokenizerSettings, TokensSettings
from tasks.project.yaml_files import read_yaml


class StageParams(Settings):
    """The sections that stages of dvc.yaml depend on; the experiment form in Prefect shows them."""

    corpus: CorpusSettings
    """Text sources, filters and de-duplication."""
    tokenizer: TokenizerSettings
    """The WordPiece vocabulary."""
    tokens: TokensSettings
    """Token arrays and the held-out share."""
    pretrain: PretrainParams
    """The encoders and how they are trained."""
    finetune: FinetuneParams
    """Fine-tuning of every encoder on every benchmark."""
    leaderboard: LeaderboardSettings = Field(default_factory=LeaderboardSettings)
    """The leaderboard page."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = [encoder.name for encoder in self.pretrain.encoders]
        names += [encoder.name for encoder in self.finetune.encoders]
        for name in self.finetune.epochs_factor:
            if name not in names:
                raise UserError(
                    f"params.yaml: finetune.epochs_factor: no encoder '{name}'; known encoders: {', '.join(names)}"
                )
        return self


class Params(StageParams):
    """All sections of params.yaml: those of the stages, and those of commands around them."""

    fetch: FetchSettings = Field(default_factory=FetchSettings)
    """Sources that `cloze fetch` downloads into data/. No stage depends on this section."""
    retrain: RetrainSettings = Field(default_factory=RetrainSettings)
    """Scheduled retraining. No stage depends on this section."""
    promotion: PromotionSettings = Field(default_factory=PromotionSettings)
    """When a new encoder becomes the champion. No stage depends on this section."""
    mirror: CheckpointSyncSettings | None = None
    """S3 location that pre-training checkpoints are copied to. No stage depends on this section."""


def load_params(path: Path) -> Params:
    """Read and validate a parameter file.

    Raises:
        UserError: the file is invalid; the message names the file, the key, the expected value and the nearest key.
    """
    return Params.parse(read_yaml(path), path.name)
