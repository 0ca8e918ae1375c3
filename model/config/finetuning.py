"""Fine-tuning options, and the ways to adapt an encoder: full training, LoRA, or frozen features."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from model.common.bounds import (
    NUMBER,
    Bytes,
    Count,
    Epochs,
    LayersOrZero,
    NotNegative,
    Positive,
    Rate,
    SequenceLength,
    ShareAboveZero,
    ShareBelowOne,
    Size,
    Width,
)
from model.common.config_base import Settings

Target = Literal["query", "key", "value", "output", "widen", "narrow"]
Batches = Literal["length", "shuffled"]
Combination = Literal[
    "embeddings", "second_to_last", "last", "weighted_last_four", "concatenated_last_four", "weighted_all"
]


class FullAdaptation(Settings):
    """Trains all weights that are not frozen."""

    kind: Literal["full"] = "full"
    """Train the encoder itself."""
    layer_decay: ShareAboveZero = 1.0
    """Layer-wise learning-rate decay: each layer's rate is this factor times the rate of the layer above; the head and
    pooler use the full rate. ELECTRA uses 0.9 and 0.8 (arXiv:2003.10555); 0.95 is common."""
    reinitialized_layers: LayersOrZero = 0
    """Number of top layers that are re-initialized, keyed by the seed (Zhang et al. 2021, arXiv:2006.05987: 1 to 6 of
    24 for small training sets)."""
    reinitialized_pooler: bool = False
    """Also re-initialize the pooler."""
    frozen_layers: LayersOrZero = 0
    """Number of bottom layers to freeze, together with the embeddings."""
    frozen_embeddings: bool = False
    """Freeze the embeddings even if no layer is frozen."""


class LoraAdaptation(Settings):
    """Trains low-rank additions to matrices, and the head; all else is frozen (Hu et al. 2021, arXiv:2106.09685).
    The additions are merged at the end. LoRA needs a learning rate about ten times that of full training."""

    kind: Literal["lora"] = "lora"
    """Train low-rank additions to the encoder's matrices."""
    rank: Width = 4
    """The rank of each addition."""
    alpha: Positive | None = None
    """Additions are scaled by alpha / rank; defaults to twice the rank, so that the scale does not depend on it."""
    dropout: ShareBelowOne = 0.0
    """Dropout on the input of the additions, on top of the recipe's dropout."""
    targets: tuple[Target, ...] = Field(("query", "key", "value", "output", "widen", "narrow"), min_length=1)
    """The matrices to adapt in every layer: query, key, value and output of attention, and widen and narrow of the
    feed-forward layer. Adapting all of them at rank 4 trains 0.4 to 0.8 % of BERT's parameters; query and value alone,
    as in the paper, a fifth of that."""
    pooler: bool = False
    """Also train the pooler in full: a square matrix with 0.3 to 0.9 % of the parameters."""

    @property
    def scale(self) -> float:
        """Scale of the additions."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


class FeatureAdaptation(Settings):
    """Trains a small model on features of the frozen encoder, computed once (Devlin et al. 2019, section 5.3).
    Use learning rates of at least 1e-3, and more epochs."""

    kind: Literal["features"] = "features"
    """Train a small model on the frozen encoder's hidden states."""
    combination: Combination = "concatenated_last_four"
    """The hidden states to read, as in table 7; weighted ones are summed with learned weights. Encoders with fewer
    layers provide all of theirs."""
    lstm_layers: LayersOrZero = 2
    """Span and tags: number of BiLSTM layers before the linear layer; 0 for none. Heads with one label per row
    (classes, regression, choice) have only the linear layer."""
    lstm_size: Width = Field(768, multiple_of=2)
    """Output width of a BiLSTM layer; each direction contributes half."""
    pooling: Literal["mean", "cls"] = "mean"
    """Features for heads with one label per row: the mean over the tokens, or [CLS]."""
    max_feature_bytes: Bytes = 4 * 2**30
    """Keep features in memory up to this size; larger features are recomputed whenever they are needed."""


JudgeShare = ShareBelowOne | Literal["auto"]
"""Share of the dev rows that are reported, see `finetune.judge_share`."""
MIN_ROWS_TO_SPLIT = 1000
"""Dev rows of a benchmark from which `auto` splits them: halves of fewer rows select and report too inaccurately."""


def judge_share_of(setting: JudgeShare, num_rows: int) -> float:
    """Return the share of a benchmark's `num_rows` dev rows that are reported; 0 to select and report on all rows."""
    if setting == "auto":
        return 0.5 if num_rows >= MIN_ROWS_TO_SPLIT else 0.0
    return setting


Adaptation = Annotated[FullAdaptation | LoraAdaptation | FeatureAdaptation, Field(discriminator="kind")]


class FinetuneRecipe(Settings):
    """Hyper-parameters of a fine-tuning job. The defaults are the paper's (section 4.1, appendix A.3)."""

    batch_size: Size = 32
    """Rows per step; for SQuAD and NER, a row is one window of a context or sentence."""
    learning_rate: Rate = 3e-5
    """Peak learning rate, reached at the end of the warm-up."""
    num_epochs: Epochs = 3
    """Passes over the training rows."""
    max_length: SequenceLength = 128
    """Maximum sequence length, including [CLS] and [SEP]. Batches are only as long as their longest row."""
    warmup_fraction: ShareBelowOne = 0.1
    """Share of steps over which the learning rate rises linearly; afterwards it falls linearly to 0."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay; biases and LayerNorm are exempt."""
    dropout: ShareBelowOne = 0.1
    """Dropout of the head and the encoder; replaces the encoder's pre-training rates."""
    max_grad_norm: Positive = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""
    bias_correction: bool = True
    """Adam's bias correction. The paper's code omits it, which makes runs on small datasets unstable
    (Mosbach et al. 2021, arXiv:2006.04884)."""
    doc_stride: Size = 128
    """SQuAD: tokens between the starts of consecutive windows of a long context."""
    document_context: bool = False
    """NER and other tags: fill each window on both sides with the sentences around it in its document, as in section
    5.3 of the paper. Only the words of the sentence itself are labeled and scored. Requires files with -DOCSTART-
    lines, and windows of full `max_length`, so it costs time."""
    max_query_length: Size = 64
    """SQuAD: maximum question length, in tokens."""
    max_answer_length: Size = 30
    """SQuAD: maximum answer length, in tokens."""
    num_best: Annotated[int, Field(ge=1, le=1000), NUMBER] = 20
    """SQuAD: number of start and of end candidates to combine per window."""
    batches: Batches | None = None
    """The rows of a batch: shuffled (a random sample) or length (random rows of similar length, which need less
    padding, but distort the share of each label in a batch). null is shuffled for heads with one label per row
    (classes, regression, choice) and length for the others (span, tags)."""
    max_train_rows: Count | None = None
    """Maximum number of training rows, the same for every seed; null uses all."""
    max_dev_rows: Count | None = None
    """Maximum number of rows to evaluate per dev file, the same for every job; null uses all, as official scores
    require. The leaderboard shows the number of rows behind each score."""
    evaluate_every_epoch: bool = False
    """Evaluate after every epoch and keep the best epoch on dev; otherwise evaluate only after the last epoch."""
    adapt: Adaptation = FullAdaptation()
    """Weights to train: all (full), low-rank additions (lora), or a small model on frozen features (features). A plain
    name selects its defaults."""

    @field_validator("adapt", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": "full", **value} if isinstance(value, dict) else value
