"""A fine-tuning world small enough for seconds: a tokenizer, an encoder of two thin layers, and files that
can be learnt."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from model.config.encoder import EncoderConfig
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions
from model.config.pretraining import PretrainRun
from model.data.token_store import TokenStore, TokenStoreWriter
from model.encoder.encoder import Encoder
from model.finetune.job import Job
from model.formats.hf_folder import save_encoder
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer, tokenizer_digest

_WORDS = [
    "good",
    "fine",
    "great",
    "bad",
    "poor",
    "awful",
    "film",
    "plot",
    "actor",
    "scene",
    "the",
    "a",
    "was",
    "is",
    "it",
    "and",
    "of",
    ".",
    ",",
    "in",
    "york",
    "paris",
    "rome",
    "anna",
    "ben",
]
_NAMES = {"york": "LOC", "paris": "LOC", "rome": "LOC", "anna": "PER", "ben": "PER"}


def small_tokenizer() -> Tokenizer:
    """WordPiece over the world's words."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, "##s", "0", "1"]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def write_small_encoder(folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """An encoder of two layers of width 32, with its tokenizer (that over the world's words)."""
    tokenizer = tokenizer or small_tokenizer()
    config = EncoderConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    encoder = Encoder(config)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    save_encoder(encoder, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in vocabulary))


def write_small_data(folder: Path) -> None:
    """Files of sst2, stsb, ner, swag, squad1 and squad2 below `folder`."""
    chance = random.Random(0)

    def sentence(words: str) -> str:
        return f"the {chance.choice(['film', 'plot', 'actor', 'scene'])} was {chance.choice(words.split())} ."

    def rated(count: int) -> list[tuple[str, int]]:
        labels = [chance.randrange(2) for _ in range(count)]
        return [(sentence("good fine great" if label else "bad poor awful"), label) for label in labels]

    def put(name: str, text: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    for part, count in (("train", 240), ("dev", 60)):
        put(
            f"glue/SST-2/{part}.tsv",
            "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rated(count)),
        )
        pairs = [(*first, *second) for first, second in zip(rated(count), rated(count))]
        header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        rows = [f"{n}\tg\tf\ty\to\ts\ts\t{a}\t{b}\t{1.0 + x + 2 * y}\n" for n, (a, x, b, y) in enumerate(pairs)]
        put(f"glue/STS-B/{part}.tsv", header + "".join(rows))
    for part, count in (("train", 200), ("valid", 50)):
        lines = ["-DOCSTART- -X- -X- O\n\n"]
        for _ in range(count):
            words = chance.choices(_WORDS, k=chance.randrange(3, 8))
            lines += [f"{word} X X {'B-' + _NAMES[word] if word in _NAMES else 'O'}\n" for word in words] + ["\n"]
        put(f"conll2003/{part}.txt", "".join(lines))
    for part, count in (("train", 120), ("val", 40)):
        rows = [",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"]
        for number in range(count):
            label = chance.randrange(4)
            endings = ["good" if ending == label else chance.choice(["bad", "poor"]) for ending in range(4)]
            rows.append(f"{number},v,0,s,{sentence('good')},it was,gold,{','.join(endings)},{label}\n")
        put(f"swag/{part}.csv", "".join(rows))
    for version in ("1.1", "2.0"):
        for part, count in (("train", 150), ("dev", 40)):
            put(f"squad/{part}-v{version}.json", json.dumps(_squad(chance, count, version == "2.0")))


def _squad(chance: random.Random, count: int, unanswerable: bool) -> dict[str, Any]:
    paragraphs: list[dict[str, Any]] = []
    for number in range(count):
        place, person = chance.choice(["york", "paris", "rome"]), chance.choice(["anna", "ben"])
        impossible = unanswerable and number % 3 == 0
        context = f"the scene was in {'it' if impossible else place} and the actor was {person} ."
        answers = [] if impossible else [{"text": place, "answer_start": context.index(place)}]
        question = {
            "id": str(number),
            "question": "the scene of it is in",
            "answers": answers,
            "is_impossible": impossible,
        }
        paragraphs.append({"context": context, "qas": [question]})
    if not unanswerable:
        for paragraph in paragraphs:
            del paragraph["qas"][0]["is_impossible"]
    return {"version": "v", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.fixture(scope="session")
def small_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of two layers of width 32."""
    folder = tmp_path_factory.mktemp("encoder")
    write_small_encoder(folder)
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with files for sst2, stsb, ner, swag, squad1 and squad2 that a small encoder learns."""
    folder = tmp_path_factory.mktemp("data")
    write_small_data(folder)
    return folder


@pytest.fixture
def make_job(small_encoder: Path, small_data: Path, tmp_path: Path) -> Callable[..., Job]:
    """Makes jobs in the small world: `make_job("sst2", num_epochs=2)`."""

    def make(benchmark: str = "sst2", folder: str = "run", **recipe: Any) -> Job:
        seed, judge_share = recipe.pop("seed", 1), recipe.pop("judge_share", "auto")
        defaults = {"batch_size": 16, "learning_rate": 3e-3, "num_epochs": 4, "max_length": 48, "dropout": 0.0}
        return Job(
            digest=recipe.pop("digest", "0123456789abcdef"),
            encoder_name="small",
            encoder_dir=recipe.pop("encoder_dir", small_encoder),
            benchmark=benchmark,
            data_dir=recipe.pop("data_dir", small_data),
            recipe=FinetuneRecipe(**{**defaults, **recipe}),
            seed=seed,
            judge_share=judge_share,
            run_dir=tmp_path / folder,
            machine=HardwareOptions(accelerator="cpu", precision="fp32", num_threads=1),
        )

    return make


TEXT_VOCABULARY = 120


def _write_text(folder: Path) -> None:
    """folder/tokenizer and folder/tokens: documents that each keep to one of two topics, of twelve words each."""
    words = [f"w{number}" for number in range(TEXT_VOCABULARY - len(SPECIAL_TOKENS))]
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *words])
    save_tokenizer(tokenizer, folder / "tokenizer")
    writer = TokenStoreWriter(
        folder / "tokens", TEXT_VOCABULARY, tokenizer_digest=tokenizer_digest(tokenizer), heldout_fraction=0.1
    )
    chance = np.random.default_rng(0)
    for document in range(300):
        topic = int(chance.integers(0, 2)) * 60
        sentences = [
            5 + (topic + chance.integers(0, 12, int(chance.integers(2, 9)))) % (TEXT_VOCABULARY - 5)
            for _ in range(int(chance.integers(1, 13)))
        ]
        writer.add_document(sentences, "heldout" if document % 10 == 0 else "train")
    writer.close()


@pytest.fixture(scope="session")
def text_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tokens/ (a token store of 270 documents, 30 held out) and tokenizer/."""
    folder = tmp_path_factory.mktemp("text")
    _write_text(folder)
    return folder


@pytest.fixture(scope="session")
def store(text_dir: Path) -> TokenStore:
    """The training part of the token store."""
    return TokenStore.open(text_dir / "tokens")


@pytest.fixture
def make_run(text_dir: Path, tmp_path: Path, torch_as_it_was: None) -> Callable[..., PretrainRun]:
    """Makes pre-training runs of seconds: `make_run("run", accumulate=2)`."""

    def make(
        folder: str = "run", *, seed: int = 1, layers: int = 2, machine: dict[str, Any] | None = None, **recipe: Any
    ) -> PretrainRun:
        defaults = {
            "phases": [{"sequence_length": 32, "batch_size": 16, "num_steps": 24, "learning_rate": 3e-3}],
            "warmup_steps": 4,
            "log_every_steps": 5,
            "checkpoint_every_steps": 8,
            "validate_every_steps": 12,
            "validation_batches": 2,
        }
        cpu = {"accelerator": "cpu", "precision": "fp32", "num_threads": 1, "compile": "off"}
        return PretrainRun.parse(
            {
                "name": "small",
                "digest": "0123456789abcdef",
                "tokens_dir": text_dir / "tokens",
                "tokenizer_dir": text_dir / "tokenizer",
                "run_dir": tmp_path / folder,
                "shape": {
                    "hidden_size": 32,
                    "num_hidden_layers": layers,
                    "num_attention_heads": 2,
                    "max_position_embeddings": 48,
                },
                "recipe": {**defaults, **recipe},
                "seed": seed,
                "machine": {**cpu, **(machine or {})},
            },
            "test",
        )

    return make


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """Pre-training in this process leaves torch's settings to the tests after it as they were."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


_LETTERS_AND_WORDS = """[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat on mat in which city is paris france capital of
who ran ##s ##ning walk ##ed big small red blue . , ? ' - ( ) 1 9 8 ##9 b c d e x y z"""
READABLE_PIECES = _LETTERS_AND_WORDS.split()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """An uncased WordPiece tokenizer over READABLE_PIECES."""
    tokenizer = Tokenizer(
        models.WordPiece({word: number for number, word in enumerate(READABLE_PIECES)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
