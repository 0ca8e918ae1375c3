"""Compare inference (sentence vectors, classes, masked words) with the pipelines of `transformers`.

    python -m bench.predict MODEL_DIR [TEXTS]

MODEL_DIR contains a BERT in the `transformers` layout; its heads get random weights, which does not affect the speed.
TEXTS has one text per line; without it, random texts with the lengths of sentences are used. The results in
build/bench/ are tokens per second of CPU time: medians over rounds in which the sides alternate, each in a separate
process. The peers are the pipeline as installed (batches of 32 in the order of the texts, fp32), and tuned by hand
(sorted by length, bf16, the tuned allocator).
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import comparison, show
from bench.processes import INSTALLED, THREADS, TUNED, ask
from model.tokenizer.wordpiece import load_tokenizer

ROUNDS = 3
NUM_TEXTS = 512
BATCH = 32  # batch size of the pipelines
_WARM_UP = 64  # texts before the clock starts
_PIPELINES = {"embed": "feature-extraction", "classify": "text-classification", "fill": "fill-mask"}
_DETAIL = {
    "embed": "sentence vectors (mean of the hidden states)",
    "classify": "class probabilities",
    "fill": "one [MASK] per text, five candidates",
}


def random_texts(model_dir: Path) -> list[str]:
    """Return texts of 5 to 80 words of the vocabulary, half of them with fewer than 20."""
    chance = random.Random(0)
    pieces = load_tokenizer(model_dir).get_vocab()
    words = sorted(piece for piece in pieces if piece.isalpha() and piece.isascii() and len(piece) > 2)
    lengths = [min(80, max(5, round(chance.lognormvariate(2.95, 0.6)))) for _ in range(NUM_TEXTS)]
    return [" ".join(chance.choices(words, k=length)) for length in lengths]


def prepare(model_dir: Path, texts: list[str], folder: Path) -> None:
    """Write the model with both heads to folder/{classify,fill}, and the texts to folder/{embed,classify,fill}.json."""
    import torch
    from transformers import AutoTokenizer, BertForMaskedLM, BertForSequenceClassification

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    for name, kind in (("classify", BertForSequenceClassification), ("fill", BertForMaskedLM)):
        kind.from_pretrained(model_dir).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    chance = random.Random(1)
    masked = []
    for text in texts:
        words = text.split()
        words[chance.randrange(len(words))] = "[MASK]"
        masked.append(" ".join(words))
    for name in _PIPELINES:
        (folder / f"{name}.json").write_text(json.dumps(masked if name == "fill" else texts))


def ours(task: dict[str, Any]) -> dict[str, Any]:
    """Time the work of the commands on texts in memory, without reading and writing files."""
    from model.config.hardware import HardwareOptions
    from model.inference.embedder import load_embedder
    from model.inference.fill_mask import load_fill_mask
    from model.inference.predictor import load_finetuned

    machine = HardwareOptions(num_threads=task["threads"], precision=task["precision"])
    if task["name"] == "embed":
        embedder = load_embedder(task["model"], pooling="mean", normalize=False, machine=machine)
        return _timed(task, embedder.embed)
    if task["name"] == "classify":
        return _timed(task, load_finetuned(task["model"], "classification", machine=machine).predict)
    return _timed(task, load_fill_mask(task["model"], machine=machine).fill)


def theirs(task: dict[str, Any]) -> dict[str, Any]:
    """Time a pipeline in batches of 32; if tuned, in bf16 and sorted by length."""
    import torch
    from transformers import pipeline
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(task["threads"])
    dtype = torch.bfloat16 if task["tuned"] else torch.float32
    # Converting tensors to lists would take longer than the model.
    options = {"return_tensors": True} if task["name"] == "embed" else {}
    made = pipeline(
        _PIPELINES[task["name"]], model=task["model"], tokenizer=task["model"], dtype=dtype, device="cpu", **options
    )

    def answer(texts: list[str]) -> Any:
        order = sorted(texts, key=lambda text: -len(text)) if task["tuned"] else texts
        found = made(order, batch_size=BATCH)
        if task["name"] != "embed":
            return found
        return [one[0].float().mean(dim=0).numpy() for one in found]

    return _timed(task, answer)


def _timed(task: dict[str, Any], answer: Callable[[list[str]], Any]) -> dict[str, Any]:
    texts = json.loads(Path(task["texts"]).read_text())
    answer(texts[:_WARM_UP])
    before, cpu = time.perf_counter(), time.process_time()
    answer(texts)
    return {"seconds": time.perf_counter() - before, "cpu": time.process_time() - cpu}


def num_tokens(task: dict[str, Any]) -> int:
    """Return the number of tokens of all texts, including [CLS] and [SEP]."""
    tokenizer = load_tokenizer(Path(task["model"]))
    texts = json.loads(Path(task["texts"]).read_text())
    return sum(len(one.ids) + 2 for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False))


SIDES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], dict[str, Any], dict[str, str]]] = {
    "ours": (ours, {"precision": "auto"}, INSTALLED),
    "ours-fp32": (ours, {"precision": "fp32"}, INSTALLED),
    "pipeline": (theirs, {"tuned": False}, INSTALLED),
    "pipeline-tuned": (theirs, {"tuned": True}, TUNED),
}


def results(model_dir: Path, texts: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a result for each kind of inference and each peer."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(model_dir, texts, folder)
        for name in _PIPELINES:
            model = model_dir if name == "embed" else folder / name
            task = {
                "name": name,
                "threads": THREADS,
                "model": str(model.resolve()),
                "texts": str(folder / f"{name}.json"),
            }
            found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            for _ in range(ROUNDS):
                for side, (_, settings, allocator) in SIDES.items():
                    found[side].append(ask("bench.predict", side, task={**task, **settings}, allocator=allocator))
            tokens = num_tokens(task)
            rates = {side: tokens / statistics.median(one["cpu"] for one in all_) for side, all_ in found.items()}
            for peer in ("pipeline", "pipeline-tuned"):
                yield comparison(
                    f"predict-{name}{peer.removeprefix('pipeline')}",
                    rates["ours"],
                    rates[peer],
                    rates["ours"] / rates[peer],
                    f"tokens per second of CPU time; {_DETAIL[name]}",
                    {"tokens": tokens, "rates": rates, "rounds": found},
                )


def main(arguments: list[str]) -> int:
    """Run one side, given by its name and a JSON task, or print all results."""
    if arguments and arguments[0] in SIDES:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        print(json.dumps(SIDES[arguments[0]][0](json.loads(arguments[1]))))
        return 0
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    model_dir = Path(arguments[0])
    texts = random_texts(model_dir)
    if len(arguments) == 2:
        texts = [line for line in Path(arguments[1]).read_text("utf-8").split("\n") if line][:NUM_TEXTS]
    show(results(model_dir, texts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
