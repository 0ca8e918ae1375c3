"""The decoded training pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer
from tasks.corpus.shards import ShardWriter
from tasks.params.root import TokensSettings
from tasks.tokens.example_pair import example_pair
from tasks.tokens.tokens import build_tokens

WORDS = ["the", "cat", "sat", "on", "a", "mat", "walk", "##ed", "."]


@pytest.mark.parametrize("num_documents", [1, 5])
def test_it_reads_as_the_text_does(num_documents: int, tmp_path: Path) -> None:
    save_tokenizer(make_tokenizer([*SPECIAL_TOKENS, *WORDS]), tmp_path / "tokenizer")
    writer = ShardWriter(tmp_path / "corpus", 1000)
    for number in range(num_documents):
        writer.add("s", str(number), "", ["The cat walked on a mat.", "A cat sat.", "The mat sat on the cat."])
    writer.close()
    build_tokens(TokensSettings(heldout_fraction=0), tmp_path / "corpus", tmp_path / "tokenizer", tmp_path / "tokens")
    example = example_pair(tmp_path / "tokens", tmp_path / "tokenizer")
    words = example["text"].split()
    assert words[0] == "[CLS]" and words[-1] == "[SEP]"
    assert words.count("[SEP]") == (2 if num_documents > 1 else 1)
    assert example["pair"] in (("next sentence", "not next") if num_documents > 1 else ("",))
    assert example["answers"] and set(example["answers"]) <= set(WORDS)
    assert set(words) <= {*WORDS, *SPECIAL_TOKENS, "walked"} | {f"{word}ed" for word in [*WORDS, *SPECIAL_TOKENS]}
    assert example == example_pair(tmp_path / "tokens", tmp_path / "tokenizer")
