"""Fine-tune with the Trainer of `transformers`, as its script run_glue.py does.

`python -m bench.trainer_peer JSON` takes encoder_dir, data_dir, benchmark, setting, recipe, seed and threads. The
setting *installed* has the script's defaults (every text padded to 128, fp32); *tuned* pads to the longest text of a
batch, groups by length, and computes in bf16. Prints one line of JSON with the dev scores by our metrics.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import find, paper_recipe
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import load_tokenizer

MAX_LENGTH = 128


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Tokenize, train and evaluate."""
    torch.set_num_threads(task["threads"])
    set_seed(task["seed"])
    row, tuned = find(task["benchmark"]), task["setting"] == "tuned"
    encoder_dir, data_dir = Path(task["encoder_dir"]), Path(task["data_dir"])
    tokenizer = AutoTokenizer.from_pretrained(encoder_dir)
    width = 1 if row.head == "regression" else len(row.labels)
    model = AutoModelForSequenceClassification.from_pretrained(encoder_dir, num_labels=width)
    dev_examples = next(iter(read_dev(row, data_dir).values())).examples

    def encoded(examples: Any) -> Dataset:
        columns = {
            "first": [example.first for example in examples],
            "second": [example.second for example in examples],
            "label": [example.label for example in examples],
        }

        def tokenized(rows: dict[str, Any]) -> Any:
            texts = (rows["first"],) if row.second is None else (rows["first"], rows["second"])
            padding = False if tuned else "max_length"
            return tokenizer(*texts, padding=padding, max_length=MAX_LENGTH, truncation=True)

        return Dataset.from_dict(columns).map(tokenized, batched=True, remove_columns=["first", "second"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task["recipe"]["batch_size"],
            per_device_eval_batch_size=8,
            learning_rate=task["recipe"]["learning_rate"],
            num_train_epochs=task["recipe"]["num_epochs"],
            warmup_steps=task["recipe"]["warmup_fraction"],
            seed=task["seed"],
            bf16=tuned,
            **({"train_sampling_strategy": "group_by_length"} if tuned else {}),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=encoded(read_train(row, data_dir).examples),
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8) if tuned else default_data_collator,
        )
        trainer.train()
        # Grouped by length, the Trainer returns predictions in the order of its sampler; sort here, and undo it below.
        arguments.train_sampling_strategy = "random"
        dev = encoded(dev_examples)
        order = np.argsort([len(ids) for ids in dev["input_ids"]], kind="stable")
        sorted_predictions = trainer.predict(dev.select(order)).predictions
        predicted = np.empty_like(sorted_predictions)
        predicted[order] = sorted_predictions
    prepared = HEADS[row.head].prepare(row, dev_examples, load_tokenizer(encoder_dir), paper_recipe(row))
    return {"scores": prepared.evaluate(np.asarray(predicted, dtype=np.float32)).scores}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
