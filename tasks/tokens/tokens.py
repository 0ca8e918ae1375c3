"""The tokens stage converts the corpus to a token store and holds out some documents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from model.common import files
from model.common.errors import UserError
from model.config.pretraining import Masking, SampleKind
from model.data.token_store import HELDOUT, TRAIN, TokenStore, TokenStoreWriter, heldout_part
from model.tokenizer.wordpiece import CachedTokenizer, Vocabulary, load_tokenizer, tokenizer_digest
from tasks.corpus.shards import read_sentences, read_sources, row_groups, utf8_of
from tasks.jobs.resources import num_cores
from tasks.params.root import TokensSettings
from tasks.project.parallel import ordered_map

Report = Callable[[int, int, str], None]


def build_tokens(
    settings: TokensSettings,
    corpus_dir: Path,
    tokenizer_dir: Path,
    out_dir: Path,
    report: Report | None = None,
    *,
    num_workers: int | None = None,
) -> dict[str, Any]:
    """Write the token store to `out_dir`; index.json is written last and its content is returned.

    The output does not depend on the number of workers (by default one per core). `report` receives the row groups
    done, the total and a short text.

    Raises:
        UserError: the corpus or the tokenizer is missing or damaged, or no training document is left.
    """
    tokenizer = load_tokenizer(tokenizer_dir)
    groups = row_groups(corpus_dir)
    tokenize = functools.partial(_tokenize, tokenizer_dir=tokenizer_dir, settings=settings)
    writer = TokenStoreWriter(
        out_dir,
        tokenizer.get_vocab_size(with_added_tokens=True),
        tokenizer_digest=tokenizer_digest(tokenizer),
        heldout_sources=settings.heldout_sources,
        heldout_fraction=settings.heldout_fraction,
    )
    num_tokens = num_train = 0
    for done, tokenized in enumerate(ordered_map(tokenize, groups, num_workers or num_cores()), start=1):
        for tokens, lengths, part in tokenized.documents():
            writer.add_tokens(tokens, lengths, part)
            num_train += part == TRAIN
        num_tokens += len(tokenized.tokens)
        if report:
            report(done, len(groups), f"{num_tokens:,} tokens")
    if not num_train:
        raise UserError(
            f"{corpus_dir}: no training document is left; add text, or lower tokens.heldout_fraction "
            f"({settings.heldout_fraction}) or remove sources from tokens.heldout_sources"
        )
    return writer.close()


def check_fit(tokens_dir: Path, tokenizer_dir: Path) -> None:
    """Check that the token store was made with this tokenizer.

    Raises:
        UserError: the token store was made with a different vocabulary, or one of the two is missing.
    """
    index_path = tokens_dir / "index.json"
    if not index_path.is_file():
        raise UserError(
            f"{index_path}: missing, so this is not a token store; run the tokens stage first (`cloze tokens`)"
        )
    made_with = files.read_json(index_path)
    tokenizer = load_tokenizer(tokenizer_dir)
    digest = tokenizer_digest(tokenizer)
    if made_with["tokenizer_digest"] != digest:
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        raise UserError(
            f"{tokens_dir}: made with a different vocabulary (hash {made_with['tokenizer_digest']}, "
            f"{made_with['vocab_size']:,} pieces) than {tokenizer_dir} (hash {digest}, {size:,} pieces); "
            "run the tokens stage again (`cloze tokens`)"
        )


@dataclass(frozen=True)
class _TokenizedGroup:
    """Tokens of the documents of a row group."""

    tokens: np.ndarray
    """(total_tokens,) ids."""
    lengths: np.ndarray
    """(num_sentences,) int64, in tokens."""
    num_sentences: np.ndarray
    """(num_documents,) int64."""
    parts: list[str]
    """The part of the token store of each document."""

    def documents(self) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
        """Yield (tokens, sentence lengths, part) of each document, without empty sentences and documents."""
        sentence_ends = np.cumsum(self.num_sentences)
        token_ends = np.concatenate([[0], np.cumsum(self.lengths)])
        first = 0
        for end, part in zip(sentence_ends.tolist(), self.parts):
            lengths = self.lengths[first:end]
            tokens = self.tokens[token_ends[first] : token_ends[end]]
            if len(tokens):
                yield tokens, lengths[lengths > 0], part
            first = end


@functools.lru_cache(maxsize=1)
def _memo_tokenizer(tokenizer_dir: Path, _digest: str) -> CachedTokenizer:
    """Return one tokenizer per process, so that its word cache serves all row groups."""
    return CachedTokenizer(load_tokenizer(tokenizer_dir))


def _tokenize(group: tuple[Path, int], tokenizer_dir: Path, settings: TokensSettings) -> _TokenizedGroup:
    from tasks.corpus.filters.duplicates import document_digest, share_of  # imports numba

    tokenizer = _memo_tokenizer(tokenizer_dir, files.digest_of_file(tokenizer_dir / "tokenizer.json"))
    column = read_sentences(*group)
    tokens, lengths = tokenizer.encode_utf8(*utf8_of(column.flatten()))
    shares = [share_of(document_digest(sentences), "heldout") for sentences in column.to_pylist()]
    parts = [HELDOUT if share < settings.heldout_fraction else TRAIN for share in shares]
    if settings.heldout_sources:
        of_source = {source: heldout_part(source) for source in settings.heldout_sources}
        parts = [of_source.get(source, part) for source, part in zip(read_sources(*group), parts, strict=True)]
    return _TokenizedGroup(tokens, lengths, np.diff(column.offsets.to_numpy()), parts)


class PairExample(TypedDict):
    text: str
    """[CLS] ... [SEP] ... [SEP], with pieces joined to words; some words are [MASK] or replaced by another word."""
    answers: list[str]
    """The pieces to predict, from left to right; some of them are visible in the text."""
    pair: str
    """Label of the pair: "next sentence", "not next", or "" if there are too few documents for pairs."""


def example_pair(tokens_dir: Path, tokenizer_dir: Path) -> PairExample:
    """The first sample of the first epoch of seed 0, of at most 64 tokens, decoded for inspection."""
    from model.data.collator import Collator  # imports torch, which the pipeline process does not need
    from model.data.sampler import EpochSampler, unusable_reason

    store, tokenizer = TokenStore.open(tokens_dir), load_tokenizer(tokenizer_dir)
    objective: SampleKind = "none" if unusable_reason(store, "next_sentence") else "next_sentence"
    sampler = EpochSampler(store, 64, objective=objective, short_probability=0.0, keys=(0, 0))
    collator = Collator(sampler, Vocabulary.of(tokenizer), Masking(), 0, num_dropouts=0)
    batch = collator.build(sampler.samples(0, 1), 0, 0)
    ids = batch.input_ids[0, : int(batch.lengths[0])].tolist()
    answers = [str(tokenizer.id_to_token(label)) for label in batch.labels[0].tolist() if label >= 0]
    text = " ".join(str(tokenizer.id_to_token(number)) for number in ids).replace(" ##", "")
    pair = ("next sentence", "not next")[int(batch.pair_label[0])] if objective == "next_sentence" else ""
    return {"text": text, "answers": answers, "pair": pair}
