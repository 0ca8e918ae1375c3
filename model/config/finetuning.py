"""Fine-tuning options, and the ways to adapt an encoder: all of it trained, low-rank additions, or frozen features."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from model.common.config_base import Settings

Target = Literal["query", "key", "value", "output", "widen", "narrow"]
Combination = Literal[
    "embeddings", "second_to_last", "last", "weighted_last_four", "concatenated_last_four", "weighted_all"
]


class FullAdaptation(Settings):
    """Trains all weights that are not frozen."""

    kind: Literal["full"] = "full"
    """Train the encoder itself."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """The rate of each layer is this many times that of the layer above it (the top layer's included), the embeddings'
    lowest; head and pooler learn at the full rate. ELECTRA takes 0.9 and 0.8 (arXiv:2003.10555), 0.95 is common."""
    reinitialised_layers: int = Field(default=0, ge=0)
    """Number of top layers that are re-initialized, keyed by the seed (Zhang et al. 2021, arXiv:2006.05987: 1 to 6 of
    24 for small training sets)."""
    reinitialised_pooler: bool = False
    """Whether the pooler is re-initialized, too."""
    frozen_layers: int = Field(default=0, ge=0)
    """Number of lowest layers that are frozen, together with the embeddings."""
    frozen_embeddings: bool = False
    """Whether the embeddings are frozen even if no layer is."""


class LoraAdaptation(Settings):
    """Low-rank additions to matrices are trained, with the head; all else is frozen (Hu et al. 2021, arXiv:2106.09685).
    The additions are merged into the matrices at the end. LoRA wants a rate some ten times that of full training."""

    kind: Literal["lora"] = "lora"
    """Train low-rank additions to the encoder's matrices."""
    rank: int = Field(4, ge=1)
    """The rank of each addition."""
    alpha: float | None = Field(None, gt=0)
    """Additions are multiplied by alpha / rank; defaults to twice the rank, so that the rank can vary alone."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the input of the additions, besides the recipe's."""
    targets: tuple[Target, ...] = Field(("query", "key", "value", "output", "widen", "narrow"), min_length=1)
    """The matrices that are added to, in every layer: query, key and value of attention, its output, and widen and
    narrow, those of the feed-forward part. All of them at rank 4 are 0.4 to 0.8 % of BERT's parameters; query and value
    alone, as the paper has it, a fifth of that at the same rank."""
    pooler: bool = False
    """Whether the pooler is trained in full, as the head is: a square matrix, 0.3 to 0.9 % of the parameters."""

    @property
    def scale(self) -> float:
        """Factor of the additions."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


class FeatureAdaptation(Settings):
    """Trains a small model on features of the frozen encoder, computed once (Devlin et al. 2019, section 5.3).
    Use learning rates of at least 1e-3, and more epochs."""

    kind: Literal["features"] = "features"
    """Train a small model on the frozen encoder's hidden states."""
    combination: Combination = "concatenated_last_four"
    """Which hidden states are read, as in table 7: weighted ones are summed with learnt weights; an encoder with fewer
    layers gives as many as it has."""
    lstm_layers: int = Field(2, ge=0)
    """Span and tags: layers of a BiLSTM before the last linear one; 0 for none. Heads with one label per row
    (classes, regression, choice) have only the linear layer."""
    lstm_size: int = Field(768, ge=2, multiple_of=2)
    """Width of a BiLSTM layer's output, half of it from each direction."""
    pooling: Literal["mean", "cls"] = "mean"
    """Features of a row with one label: the mean of its tokens, or [CLS]."""
    max_feature_bytes: int = Field(4 * 2**30, ge=0)
    """Features are kept in memory up to this size; beyond it they are computed again whenever they are needed."""


Adaptation = Annotated[FullAdaptation | LoraAdaptation | FeatureAdaptation, Field(discriminator="kind")]


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
