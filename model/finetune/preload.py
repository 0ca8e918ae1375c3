"""What a worker does once for all its forks: the first step of everything, while still on one thread."""

from __future__ import annotations

import numpy as np
import torch

from model.benchmarks.table import BENCHMARKS
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.heads.batches import collate
from model.heads.features import Features, Ragged
from model.heads.task_model import TaskModel
from model.ops.forward_context import ForwardContext
from model.ops.keyed_dropout import DropoutKey
from model.optim.master_weights import MasterWeights
from model.optim.optimizers import make_optimizer
from model.tokenizer.wordpiece import SPECIAL_TOKENS, CachedTokenizer, make_tokenizer


def warm_up() -> None:
    """Train a toy for two steps, so that kernels are loaded and dropout is compiled before the first fork.

    On a CPU and one thread only: neither CUDA nor a pool of threads survives a fork.
    """
    torch.set_num_threads(1)
    CachedTokenizer(make_tokenizer(SPECIAL_TOKENS)).encode_lines(["a word", "é"])  # loads its compiled code
    config = EncoderConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    values = np.arange(32, dtype=np.int32) % 16
    sequences = Ragged(values, np.array([0, 8, 16, 28, 32]))
    features = Features(sequences, np.array([4, 4, 4, 4]), np.array([0, 1, 0, 1]))
    model = TaskModel(Encoder(config), BENCHMARKS["cola"], dropout=0.1, seed=0).train()
    batch = collate(features, np.arange(4), 0)
    for kind in ("adamw", "bert_adamw"):
        optimizer = make_optimizer(model, kind, 1e-3)
        model.loss(model(batch, DropoutKey(0, 0, batch.samples)), batch.targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    master_weights = MasterWeights(model, None, optimizer)
    context = ForwardContext(low_precision=master_weights.copies)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch, DropoutKey(0, 0, batch.samples), context)
    model.loss(logits, batch.targets).backward()
    master_weights.collect_gradients(only_pass=True)
    master_weights.clip(1.0)
    optimizer.step()
