"""Continue masked-LM training with the Trainer of `transformers`, as its script run_mlm.py does, for a given time.

`python -m bench.mlm_peer JSON` takes start_dir, tokens_dir, out_dir, setting, rate, seconds, seed and threads. The
setting *installed* has the script's defaults (chunks of 512 tokens, 8 per step, fp32); *tuned* has chunks of 128, 32
per step, in bf16 where the processor has it. Both group texts as the script does, with one document per text, which
wastes the fewest tokens. The learning rate falls linearly to 0 at the end of the time, as the Trainer's schedule would
if it knew the number of steps. Prints one line of JSON with the steps and the seconds of training.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from model.config.hardware import HardwareOptions, resolve
from model.data.token_store import TokenStore

SETTINGS = {"installed": {"length": 512, "batch_size": 8}, "tuned": {"length": 128, "batch_size": 32}}


class TimedTrainer(Trainer):
    """A Trainer whose learning rate falls to 0 within `seconds`."""

    seconds: float
    started: float | None = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        def share_left(_: int) -> float:
            spent = 0.0 if self.started is None else time.perf_counter() - self.started
            return max(0.0, 1 - spent / self.seconds)

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share_left)
        return self.lr_scheduler


class Clock(TrainerCallback):
    """Starts the time with the first step, and stops training at its end."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self._trainer = trainer

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._trainer.started is None:
            self._trainer.started = time.perf_counter()

    def on_step_end(self, _arguments: Any, _state: Any, control: Any, **__: Any) -> None:
        assert self._trainer.started is not None
        control.should_training_stop = time.perf_counter() - self._trainer.started >= self._trainer.seconds


def chunks(store: TokenStore, tokenizer: Any, length: int) -> Dataset:
    """Concatenate [CLS] document [SEP] ..., and cut chunks of `length`, as group_texts in run_mlm.py."""
    borders = store.sentence_offsets[store.document_offsets].tolist()
    texts = [store.tokens[begin:end] for begin, end in itertools.pairwise(borders)]
    first, last = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    ids = np.concatenate([np.concatenate([first, text, last]) for text in texts]).astype(np.int64)
    ids = ids[: len(ids) // length * length].reshape(-1, length)
    special = (ids == first[0]) | (ids == last[0])
    columns = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
        "special_tokens_mask": special.astype(np.int64),
    }
    return Dataset.from_dict(columns)


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Train, and save the model to out_dir."""
    torch.set_num_threads(task["threads"])
    set_seed(task["seed"])
    setting = SETTINGS[task["setting"]]
    tokenizer = AutoTokenizer.from_pretrained(task["start_dir"])
    model = BertForMaskedLM.from_pretrained(task["start_dir"])
    precision = resolve(HardwareOptions(accelerator="cpu")).precision
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=setting["batch_size"],
            learning_rate=task["rate"],
            max_steps=10**6,
            seed=task["seed"],
            bf16=task["setting"] == "tuned" and precision == "bf16",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = TimedTrainer(
            model=model,
            args=arguments,
            train_dataset=chunks(TokenStore.open(Path(task["tokens_dir"])), tokenizer, setting["length"]),
            data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15),
        )
        trainer.seconds = task["seconds"]
        trainer.add_callback(Clock(trainer))
        trainer.train()
        seconds = time.perf_counter() - (trainer.started or 0.0)
    model.save_pretrained(task["out_dir"])
    return {"steps": trainer.state.global_step, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
