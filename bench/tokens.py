"""Compare tokenization, vocabulary training and batch preparation with other implementations.

    python -m bench.tokens CORPUS_DIR TOKENIZER_DIR [GOOGLE_BERT_DIR]

CORPUS_DIR and TOKENIZER_DIR are build/corpus and build/tokenizer of a run on real text (docs/real-data.md).
GOOGLE_BERT_DIR contains create_pretraining_data.py and tokenization.py of google-research/bert; without it, that peer
is skipped. The results in build/bench/ are medians over rounds in which the sides alternate, each in a separate
process.
"""

from __future__ import annotations

import functools
import json
import os
import random
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench import comparison, show
from bench.processes import THREADS, ask
from model.config.pretraining import Masking
from model.data.collator import Collator
from model.data.sampler import EpochSampler
from model.data.token_store import TokenStore
from model.tokenizer.wordpiece import Vocabulary, load_tokenizer
from tasks.corpus.shards import ShardWriter, read_documents, read_sentences, row_groups, shard_paths
from tasks.params.root import TokenizerSettings, TokensSettings
from tasks.tokens.tokenizer import count_words, train_vocabulary
from tasks.tokens.tokens import _memo_tokenizer, _tokenize, build_tokens

ROUNDS = 3
PREPARED_CHARACTERS = 30_000_000  # Google's code reads about a million per second
LENGTH = 128


def sentences_in(task: dict[str, Any]) -> list[list[str]]:
    """Return the sentences of every row group."""
    return [read_sentences(*group).flatten().to_pylist() for group in row_groups(Path(task["corpus"]))]


def tokenize_ours(task: dict[str, Any]) -> dict[str, Any]:
    """Time the running workers of the tokens stage, which also read Parquet and hash the documents."""
    groups = row_groups(Path(task["corpus"]))
    tokenize = functools.partial(
        _tokenize, tokenizer_dir=Path(task["tokenizer"]), settings=TokensSettings(heldout_fraction=0.0)
    )
    with ProcessPoolExecutor(THREADS, mp_context=get_context("spawn")) as executor:
        list(executor.map(time.sleep, [0.5] * THREADS))  # start the processes
        list(executor.map(_import_all, range(THREADS)))
        before = time.perf_counter()
        done = list(executor.map(tokenize, groups))
        seconds = time.perf_counter() - before
    if "out" in task:
        np.save(task["out"], np.concatenate([group.tokens for group in done]))
        np.save(task["out"] + ".lengths", np.concatenate([group.lengths for group in done]))
    return {"seconds": seconds, "tokens": int(sum(len(group.tokens) for group in done))}


def _import_all(_: int) -> None:
    time.sleep(0.2)


def tokenize_batches(task: dict[str, Any]) -> dict[str, Any]:
    """Time `encode_batch_fast` on all threads over lines in memory, without converting its lists."""
    tokenizer = load_tokenizer(Path(task["tokenizer"]))
    tokenizer.encode_special_tokens = True
    spent, ids, lengths = 0.0, [], []
    for lines in sentences_in(task):
        before = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        spent += time.perf_counter() - before
        if "out" in task:
            lengths.append(np.array([len(encoding.ids) for encoding in encodings]))
            ids.append(np.concatenate([np.array(encoding.ids, dtype=np.uint16) for encoding in encodings]))
    if "out" in task:
        np.save(task["out"], np.concatenate(ids))
        np.save(task["out"] + ".lengths", np.concatenate(lengths))
    return {"seconds": spent}


def tokenize_map(task: dict[str, Any]) -> dict[str, Any]:
    """Time batched `datasets.map` in one process per core."""
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    datasets.disable_caching()
    tokenizer = BertTokenizerFast(tokenizer_file=str(Path(task["tokenizer"]) / "tokenizer.json"))
    lines = [line for group in sentences_in(task) for line in group]
    data = datasets.Dataset.from_dict({"text": lines})
    before = time.perf_counter()
    data.map(
        lambda rows: tokenizer(rows["text"], add_special_tokens=False, return_attention_mask=False),
        batched=True,
        num_proc=THREADS,
        remove_columns=["text"],
    )
    return {"seconds": time.perf_counter() - before}


def vocabulary_ours(task: dict[str, Any]) -> dict[str, Any]:
    """Time the tokenizer stage: count words, then run the trainer of `tokenizers` on them."""
    settings, before = TokenizerSettings(), time.perf_counter()
    pieces = train_vocabulary(count_words(settings, Path(task["corpus"]), None, THREADS), settings)
    return {"seconds": time.perf_counter() - before, "pieces": len(pieces)}


def vocabulary_library(task: dict[str, Any]) -> dict[str, Any]:
    """Time the trainer of `tokenizers` on the sentences."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    groups = sentences_in(task)
    before = time.perf_counter()
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=30_522,
        min_frequency=2,
        limit_alphabet=1000,
        show_progress=False,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        continuing_subword_prefix="##",
    )
    tokenizer.train_from_iterator(groups, trainer)
    return {"seconds": time.perf_counter() - before, "pieces": tokenizer.get_vocab_size()}


def prepare_ours(task: dict[str, Any]) -> dict[str, Any]:
    """Time tokenization, sampling, and masking of all batches of one epoch, in one process.

    Runs twice with an empty word cache; the difference is the time to load compiled code ("start").
    """
    first, second = _prepare(task), _prepare(task)
    return {**second, "start": first["cpu"] - second["cpu"]}


def _prepare(task: dict[str, Any]) -> dict[str, Any]:
    _memo_tokenizer.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        before, cpu = time.perf_counter(), time.process_time()
        tokenizer_dir = Path(task["tokenizer"])
        settings = TokensSettings(heldout_fraction=0.0)
        build_tokens(settings, Path(task["text"]), tokenizer_dir, Path(folder), num_workers=1)
        tokens = _feed_epoch(Path(folder), tokenizer_dir, LENGTH)[0]
        return {"seconds": time.perf_counter() - before, "cpu": time.process_time() - cpu, "tokens": tokens}


def prepare_google(task: dict[str, Any]) -> dict[str, Any]:
    """Time Google's tokenizer and instance builder over the text once, without writing files."""
    tensorflow = types.ModuleType("tensorflow")
    ignore: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    flags = types.SimpleNamespace(FLAGS=None)
    for kind in ("string", "bool", "integer", "float"):
        setattr(flags, f"DEFINE_{kind}", ignore)
    tensorflow.flags = flags  # type: ignore[attr-defined]
    tensorflow.gfile = types.SimpleNamespace(GFile=lambda path, mode: Path(path).open(mode + "b"))  # type: ignore[attr-defined]  # noqa: SIM115
    sys.modules["tensorflow"] = tensorflow
    sys.path.insert(0, task["google"])
    import create_pretraining_data  # type: ignore[import-not-found]
    import tokenization  # type: ignore[import-not-found]

    text = Path(task["text"]) / "sentences.txt"
    create_pretraining_data.FLAGS = types.SimpleNamespace(do_whole_word_mask=False)
    before, cpu = time.perf_counter(), time.process_time()
    tokenizer = tokenization.FullTokenizer(str(Path(task["tokenizer"]) / "vocab.txt"), do_lower_case=True)
    instances = create_pretraining_data.create_training_instances(
        [str(text)], tokenizer, LENGTH, 1, 0.1, 0.15, 20, random.Random(1)
    )
    spent = {"seconds": time.perf_counter() - before, "cpu": time.process_time() - cpu}
    return {**spent, "tokens": sum(len(instance.tokens) for instance in instances)}


def prepare_hub(task: dict[str, Any]) -> dict[str, Any]:
    """Time the steps of run_mlm.py (tokenize, concatenate, split into blocks) in one process with one thread."""
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    datasets.disable_caching()
    tokenizer = BertTokenizerFast(tokenizer_file=str(Path(task["tokenizer"]) / "tokenizer.json"))
    lines = [line for line in (Path(task["text"]) / "sentences.txt").read_text("utf-8").split("\n") if line]
    data = datasets.Dataset.from_dict({"text": lines})

    def blocks(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [number for row in column for number in row] for name, column in rows.items()}
        whole = len(next(iter(joined.values()))) // LENGTH * LENGTH
        return {name: [ids[at : at + LENGTH] for at in range(0, whole, LENGTH)] for name, ids in joined.items()}

    before, cpu = time.perf_counter(), time.process_time()
    tokenized = data.map(
        lambda rows: tokenizer(rows["text"], return_special_tokens_mask=True), batched=True, remove_columns=["text"]
    )
    grouped = tokenized.map(blocks, batched=True)
    return {
        "seconds": time.perf_counter() - before,
        "cpu": time.process_time() - cpu,
        "tokens": len(grouped) * LENGTH,
    }


def _feed_epoch(tokens_dir: Path, tokenizer_dir: Path, length: int, batch: int = 256) -> tuple[int, float, float]:
    """Build all batches of one epoch; return their tokens without padding, and the CPU seconds of sampling and
    batching."""
    store, vocabulary = TokenStore.open(tokens_dir), Vocabulary.of(load_tokenizer(tokenizer_dir))
    before = time.process_time()
    sampler = EpochSampler(store, length, objective="next_sentence", short_probability=0.1, keys=(1, 0))
    collator = Collator(sampler, vocabulary, Masking(), 1, num_dropouts=37)
    sampler.samples(0, 1)
    planned = time.process_time()
    num_tokens, size = 0, sampler.epoch_size(0)
    for first in range(0, size, batch):
        samples = sampler.samples(first, min(batch, size - first))
        num_tokens += int(collator.build(samples, first, first // batch).lengths.sum())
    return num_tokens, planned - before, time.process_time() - planned


def feed(task: dict[str, Any]) -> dict[str, Any]:
    """Measure tokens without padding per CPU second of one core, over epochs at one sequence length."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_dir = Path(task["tokenizer"])
        build_tokens(TokensSettings(), Path(task["corpus"]), tokenizer_dir, Path(folder), num_workers=THREADS)
        _feed_epoch(Path(folder), tokenizer_dir, task["length"])  # load compiled code before the clock starts
        rounds = [_feed_epoch(Path(folder), tokenizer_dir, task["length"]) for _ in range(ROUNDS)]
    tokens = rounds[0][0]
    plan, batches = (statistics.median(spent[at] for spent in rounds) for at in (1, 2))
    return {"tokens": tokens, "plan_seconds": plan, "batch_seconds": batches, "rate": tokens / (plan + batches)}


SIDES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    side.__name__: side
    for side in (
        tokenize_ours, tokenize_batches, tokenize_map, vocabulary_ours, vocabulary_library,
        prepare_ours, prepare_google, prepare_hub, feed,
    )
}  # fmt: skip


def compare(name: str, task: dict[str, Any], ours: str, peers: list[str], unit: str) -> Iterator[dict[str, Any]]:
    """Yield one result per peer, in seconds."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in (ours, *peers)}
    for _ in range(ROUNDS):
        for side in found:
            found[side].append(ask("bench.tokens", side, task=task))
    key = "cpu" if "cpu" in found[ours][0] else "seconds"
    medians = {side: statistics.median(answer[key] for answer in answers) for side, answers in found.items()}
    for peer in peers:
        ratio = medians[peer] / medians[ours]
        yield comparison(f"{name}-{peer.partition('_')[2]}", medians[ours], medians[peer], ratio, unit, found)


def write_text(corpus_dir: Path, out: Path) -> None:
    """Write a sample of the corpus, as a corpus and as text with a sentence per line and a blank line between
    documents."""
    everything = list(read_documents(shard_paths(corpus_dir)))
    size = sum(len(sentence) for document in everything for sentence in document[3])
    documents = everything[:: -(-size // PREPARED_CHARACTERS)]  # from all sources
    writer = ShardWriter(out, 1 << 30)
    for document in documents:
        writer.add(*document)
    writer.close()
    (out / "sentences.txt").write_text("\n".join("\n".join(document[3]) + "\n" for document in documents), "utf-8")


def same_ids(task: dict[str, Any]) -> int:
    """Check that our tokenizer gives the ids of `tokenizers`, and return the number of compared lines.

    Raises:
        AssertionError: the ids of a line differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        for side in ("tokenize_ours", "tokenize_batches"):
            ask("bench.tokens", side, task={**task, "out": f"{folder}/{side}.npy"})
        for part in ("", ".lengths.npy"):
            paths = [f"{folder}/{side}.npy{part}" for side in ("tokenize_ours", "tokenize_batches")]
            ours, theirs = (np.load(path, allow_pickle=False) for path in paths)
            assert np.array_equal(ours, theirs), "the ids differ from those of `tokenizers`"
        return len(ours)


def results(corpus_dir: Path, tokenizer_dir: Path, google: str | None) -> Iterator[dict[str, Any]]:
    """Yield all results."""
    task = {"corpus": str(corpus_dir), "tokenizer": str(tokenizer_dir)}
    print(f"{same_ids(task):,} lines have the same ids as with `tokenizers`", flush=True)
    yield from compare("tokenise", task, "tokenize_ours", ["tokenize_batches", "tokenize_map"], "seconds")
    yield from compare("vocabulary", task, "vocabulary_ours", ["vocabulary_library"], "seconds")
    with tempfile.TemporaryDirectory() as folder:
        write_text(corpus_dir, Path(folder))
        peers = ["prepare_google", "prepare_hub"] if google else ["prepare_hub"]
        text = {**task, "text": folder, "google": google}
        yield from compare("prepare", text, "prepare_ours", peers, "CPU seconds of one process")
    for length, wanted in ((128, 30e6), (512, 60e6)):
        found = ask("bench.tokens", "feed", task={**task, "length": length})
        unit = "million tokens per CPU second of one core, without padding (peer: demand of eight H200s)"
        ratio = found["rate"] / wanted
        yield comparison(f"feed-{length}", found["rate"] / 1e6, wanted / 1e6, ratio, unit, found)


def main(arguments: list[str]) -> int:
    """Run one side, given by its name and a JSON task, or print all results."""
    if arguments and arguments[0] in SIDES:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        print(json.dumps(SIDES[arguments[0]](json.loads(arguments[1]))))
        return 0
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    show(results(Path(arguments[0]), Path(arguments[1]), arguments[2] if len(arguments) == 3 else None))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
