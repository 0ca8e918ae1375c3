"""Decode one masked training pair, for inspection."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from model.config.pretraining import Masking, SampleKind
from model.data.collator import Collator
from model.data.sampler import EpochSampler, unusable_reason
from model.data.token_store import TokenStore
from model.tokenizer.wordpiece import Vocabulary, load_tokenizer

_LENGTH = 64
_SEED = 0


class PairExample(TypedDict):
    """A decoded sample."""

    text: str
    """[CLS] ... [SEP] ... [SEP], its pieces joined to words, some of them [MASK] or another word."""
    answers: list[str]
    """The pieces that are to be predicted, from left to right; some of them are unmasked in the text."""
    pair: str
    """"next sentence", "not next", or "" where there are too few documents for pairs."""


def example_pair(tokens_dir: Path, tokenizer_dir: Path) -> PairExample:
    """The first sample of the first epoch of seed 0, of at most 64 tokens."""
    store, tokenizer = TokenStore.open(tokens_dir), load_tokenizer(tokenizer_dir)
    objective: SampleKind = "none" if unusable_reason(store, "next_sentence") else "next_sentence"
    sampler = EpochSampler(store, _LENGTH, objective=objective, short_probability=0.0, keys=(_SEED, 0))
    collator = Collator(sampler, Vocabulary.of(tokenizer), Masking(), _SEED, num_dropouts=0)
    batch = collator.build(sampler.samples(0, 1), 0, 0)
    ids = batch.input_ids[0, : int(batch.lengths[0])].tolist()
    answers = [str(tokenizer.id_to_token(label)) for label in batch.labels[0].tolist() if label >= 0]
    text = " ".join(str(tokenizer.id_to_token(number)) for number in ids).replace(" ##", "")
    pair = ("next sentence", "not next")[int(batch.pair_label[0])] if objective == "next_sentence" else ""
    return {"text": text, "answers": answers, "pair": pair}
