"""The peer of pre-training: BertForPreTraining of `transformers`, trained by the step of its Trainer.

`python -m bench.peer steps JSON` times steps on random tokens, and `python -m bench.peer learn JSON` trains on a token
store. Both print one line of JSON. The times exclude the overhead of the Trainer (callbacks, logging, data loaders).
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from bench.timing import device, median_seconds, random_pairs

MODES = ("eager", "sdpa", "compiled")


def make_model(shape: dict[str, Any], mode: str, seed: int = 0) -> BertForPreTraining:
    """Return the model on the available device; `shape` has the keys of BertConfig."""
    torch.manual_seed(seed)
    config = BertConfig(**shape, attn_implementation=attention(mode))
    return BertForPreTraining(config).train().to(device())


def attention(mode: str) -> str:
    """Return the attention implementation of a mode."""
    return "eager" if mode == "eager" else "sdpa"


def make_optimizer(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return fused AdamW with the Trainer's groups: no weight decay of biases and LayerNorm."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def step(forward: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> Tensor:
    """Take one step in bf16 autocast, with gradients clipped to norm 1, and return the loss."""
    with torch.autocast(batch["input_ids"].device.type, torch.bfloat16):
        loss = forward(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def time_steps(task: dict[str, Any]) -> dict[str, float]:
    """Return the median seconds of a step; the task has shape, mode, batch, length, steps and threads."""
    torch.set_num_threads(task["threads"])
    model = make_model(task["shape"], task["mode"])
    optimizer = make_optimizer(model, 1e-4)
    forward = torch.compile(model) if task["mode"] == "compiled" else model
    ids, types, pair_labels = random_pairs(task["batch"], task["length"], model.config.vocab_size)
    batch = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(torch.rand(ids.shape, device=ids.device) < 0.15, ids, -100),
        "next_sentence_label": pair_labels,
    }
    return {"seconds": median_seconds(lambda _: step(forward, model, optimizer, batch), task["steps"])}


def learn(task: dict[str, Any]) -> dict[str, Any]:
    """Train on our batches, and return the curve of step, seconds of training, and held-out masked-LM loss.

    The task has tokens_dir, tokenizer_dir, shape, recipe (with one phase), seed, mode and threads.
    """
    from model.config.encoder import EncoderConfig
    from model.config.pretraining import PretrainRecipe
    from model.data.collator import PretrainBatch
    from model.data.loader import PretrainLoader
    from model.data.token_store import TokenStore
    from model.encoder.init import initialize
    from model.formats.hf_folder import load_encoder, load_heads, save_encoder
    from model.objectives import OBJECTIVES
    from model.objectives.masked_lm import PretrainingModule
    from model.pretrain.evaluation import Validation
    from model.tokenizer.wordpiece import Vocabulary, load_tokenizer

    torch.set_num_threads(task["threads"])
    recipe = PretrainRecipe.parse(task["recipe"], "task")
    tokens_dir = Path(task["tokens_dir"])
    vocabulary = Vocabulary.of(load_tokenizer(Path(task["tokenizer_dir"])))
    objective = OBJECTIVES[recipe.sentence_objective]
    loader = PretrainLoader(recipe, TokenStore.open(tokens_dir), vocabulary, task["seed"], 1, objective)
    validation = Validation(recipe, TokenStore.open(tokens_dir, "heldout"), vocabulary)
    start = PretrainingModule(EncoderConfig.parse(task["shape"], "task"))
    initialize(start, task["seed"], start.encoder.config.initializer_range, recipe.start)
    with tempfile.TemporaryDirectory() as folder:  # the initial weights of Cloze
        save_encoder(start.encoder, folder, masked=start.masked, next_sentence=start.next_sentence)
        model = BertForPreTraining.from_pretrained(folder, attn_implementation=attention(task["mode"]))
    model.train().to(device())
    optimizer = make_optimizer(model, 0.0)
    forward = torch.compile(model) if task["mode"] == "compiled" else model

    def theirs(batch: PretrainBatch) -> dict[str, Tensor]:
        length = batch.input_ids.shape[1]
        # Unused predictions have position 0, whose label is reset afterwards.
        labels = torch.full_like(batch.input_ids, -100).scatter(1, batch.positions[:, 1:], batch.labels)
        labels[:, 0] = -100
        return {
            "input_ids": batch.input_ids,
            "token_type_ids": batch.token_type_ids,
            "attention_mask": (torch.arange(length) < batch.lengths[:, None]).long(),
            "labels": labels,
            "next_sentence_label": batch.pair_label,
        }

    def heldout_loss() -> float:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            module = PretrainingModule(load_encoder(Path(folder)).config)
            module.encoder = load_encoder(Path(folder))
            module.masked, module.next_sentence = load_heads(Path(folder), module.encoder.config)
        sums, tally = validation.run(module, module, 0, 0, 1)
        return float(sums[0]) / tally.num_predictions

    curve, spent = [], 0.0
    for number in range(recipe.num_steps):
        before = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = loader.phase_schedule.learning_rate(number, 0.0)
        loss = step(forward, model, optimizer, theirs(loader.at(number).batches[0]))
        spent += time.perf_counter() - before
        if (number + 1) % recipe.validate_every_steps == 0 or number + 1 == recipe.num_steps:
            curve.append({"step": number + 1, "seconds": spent, "mlm_loss": heldout_loss()})
            print(json.dumps(curve[-1]), file=sys.stderr, flush=True)
            if not math.isfinite(float(loss)):
                break
    return {"curve": curve}


if __name__ == "__main__":
    act = {"steps": time_steps, "learn": learn}[sys.argv[1]]
    print(json.dumps(act(json.loads(sys.argv[2]))))
