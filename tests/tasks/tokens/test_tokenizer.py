"""A vocabulary that is the same each time, and existing ones taken over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from model.common import files
from model.common.errors import UserError
from model.tokenizer.wordpiece import SPECIAL_TOKENS, load_tokenizer, read_vocabulary, vocabulary_of
from tasks.corpus.shards import ShardWriter
from tasks.params.root import TokenizerSettings
from tasks.tokens.tokenizer import count_words, train_tokenizer, train_vocabulary


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of a small invented language in which many pairs of letters are equally frequent."""
    folder = tmp_path_factory.mktemp("project") / "build" / "corpus"
    random.seed(2)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(random.choices(syllables, k=random.randint(1, 4))) for _ in range(400)]
    writer = ShardWriter(folder, 1 << 20)
    for number in range(60):
        sentences = [" ".join(random.choices(words, k=9)).capitalize() + ", Café 中 12." for _ in range(8)]
        writer.add("s", str(number), "", sentences)
    writer.close()
    return folder


SMALL = TokenizerSettings(vocab_size=300)


def test_vocabulary(corpus_dir: Path, tmp_path: Path) -> None:
    assert train_tokenizer(SMALL, corpus_dir, tmp_path) == {"vocab_size": 300}
    vocabulary = read_vocabulary(tmp_path / "vocab.txt")
    assert tuple(vocabulary[:5]) == SPECIAL_TOKENS
    assert len(vocabulary) == len(set(vocabulary)) == 300
    assert {"a", "##a", ",", "中", "cafe"} <= set(vocabulary)
    assert not any(letter in piece for piece in vocabulary[5:] for letter in "éABC")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Café 中, 12.").tokens == ["[CLS]", "cafe", "中", ",", "12", ".", "[SEP]"]
    assert vocabulary_of(tokenizer) == vocabulary


TRAIN = """
import sys
from pathlib import Path
from tasks.params.root import TokenizerSettings
from tasks.tokens.tokenizer import train_tokenizer
if __name__ == "__main__":
    corpus_dir, out_dir = map(Path, sys.argv[1:3])
    train_tokenizer(TokenizerSettings(vocab_size=300), corpus_dir, out_dir, num_workers=int(sys.argv[3]))
"""


def test_same_bytes_in_every_process(corpus_dir: Path, tmp_path: Path) -> None:
    train_tokenizer(SMALL, corpus_dir, tmp_path / "here")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    for number, (parallel, seed) in enumerate([("true", "1"), ("false", "2")]):
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": parallel, "PYTHONHASHSEED": seed}
        out = tmp_path / str(number)
        command = [sys.executable, str(script), str(corpus_dir), str(out), str(number + 1)]
        subprocess.run(command, check=True, env=environment)
        assert files.digest_of_folder(out) == files.digest_of_folder(tmp_path / "here")


def test_pieces_are_those_of_the_library(corpus_dir: Path) -> None:
    """The library alone, on the same words, finds the same pieces but for ties, which it decides at random."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    from tasks.corpus.shards import read_documents, shard_paths

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    lines = [sentence for row in read_documents(shard_paths(corpus_dir)) for sentence in row[3]]
    tokenizer.train_from_iterator(lines, trainer)
    ours = train_vocabulary(count_words(SMALL, corpus_dir, None, 1), SMALL)
    assert len(set(ours) & set(tokenizer.get_vocab())) >= 290


def test_alphabet_is_limited(corpus_dir: Path) -> None:
    settings = TokenizerSettings(vocab_size=300, max_alphabet=26)
    vocabulary = train_vocabulary(count_words(settings, corpus_dir, None, 1), settings)
    assert "中" not in vocabulary or len({piece for piece in vocabulary if len(piece) == 1}) <= 26


def test_cased(corpus_dir: Path, tmp_path: Path) -> None:
    train_tokenizer(TokenizerSettings(vocab_size=400, lowercase=False), corpus_dir, tmp_path)
    assert load_tokenizer(tmp_path).encode("Café", add_special_tokens=False).tokens == ["Café"]


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_existing_vocabulary_is_taken_over(corpus_dir: Path, tmp_path: Path, name: str) -> None:
    train_tokenizer(SMALL, corpus_dir, tmp_path / "trained")
    project = corpus_dir.parent.parent
    (project / name).write_bytes((tmp_path / "trained" / name).read_bytes())
    train_tokenizer(TokenizerSettings(existing=name), corpus_dir, tmp_path / "taken")
    assert files.digest_of_folder(tmp_path / "taken") == files.digest_of_folder(tmp_path / "trained")


def test_faults_are_named(corpus_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no Parquet files; run the corpus stage first"):
        train_tokenizer(SMALL, tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size: 32 is too small for the \d+ letters"):
        train_tokenizer(TokenizerSettings(vocab_size=32), corpus_dir, tmp_path / "out")
    with pytest.raises(UserError, match=r"none\.txt: missing, but tokenizer\.existing names it"):
        train_tokenizer(TokenizerSettings(existing="none.txt"), corpus_dir, tmp_path / "out")
    (corpus_dir.parent.parent / "bad.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"bad\.txt: no \[PAD\]"):
        train_tokenizer(TokenizerSettings(existing="bad.txt"), corpus_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
