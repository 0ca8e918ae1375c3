"""Fine-tuning options."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from model.common.config_base import Settings
from model.config.adaptation import Adaptation, FullAdaptation


class FinetuneRecipe(Settings):
    """Hyper-parameters of one fine-tuning. The defaults are the paper's (section 4.1, appendix A.3)."""

    batch_size: int = Field(32, ge=1)
    """Rows in a step; for SQuAD and NER a row is one window of a context or sentence."""
    learning_rate: float = Field(3e-5, gt=0)
    """Learning rate at the end of the warm-up."""
    num_epochs: int = Field(3, ge=1)
    """Passes over the training rows."""
    max_length: int = Field(128, ge=8)
    """Longest sequence, in tokens with [CLS] and [SEP]. Batches are only as long as their longest row."""
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    """The share of steps over which the learning rate rises linearly; afterwards it falls linearly to 0."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay, not on biases and LayerNorm."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the head and the encoder; replaces the encoder's pre-training rates."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    bias_correction: bool = True
    """Adam's bias correction. The paper's code had none, which makes runs on small sets unstable
    (Mosbach et al. 2021, arXiv:2006.04884)."""
    doc_stride: int = Field(128, ge=1)
    """SQuAD: tokens between the starts of consecutive windows of a long context."""
    max_query_length: int = Field(64, ge=1)
    """SQuAD: longest question, in tokens."""
    max_answer_length: int = Field(30, ge=1)
    """SQuAD: longest answer, in tokens."""
    num_best: int = Field(20, ge=1)
    """SQuAD: number of start and end candidates of a window that are combined."""
    max_train_rows: int | None = Field(None, ge=1)
    """Train on this many rows, the same ones for every seed; none for all."""
    max_dev_rows: int | None = Field(None, ge=1)
    """Judge by this many rows of each dev file, the same ones for every job; none for all, as official scores ask.
    The leaderboard shows how many rows a score rests on."""
    evaluate_every_epoch: bool = False
    """Evaluate after every epoch and keep the best epoch on dev; otherwise evaluate only after the last epoch."""
    adapt: Adaptation = FullAdaptation()
    """The trained weights: all (full), low-rank additions (lora), or a small model on frozen features (features). The
    name alone selects the defaults."""

    @field_validator("adapt", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": "full", **value} if isinstance(value, dict) else value
