"""What numba compiles, beside the same functions as plain Python (numba switched off in another process)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from model.ops.keyed_dropout import DropoutKey, keep_factors
from model.common.rng import Domain, Key, draw, unit
from model.data.collator import Collator
from model.common.rng import permute_range
from model.data.sampler import EpochSampler
from model.config.pretraining import Masking
from model.data.token_store import TokenStore
from model.tokenizer.wordpiece import Vocabulary
from model.tokenizer.wordpiece import SpecialIds
import torch

np.seterr(over="ignore")
store = TokenStore.open(Path(sys.argv[1]))
found = {"compiled": np.array(hasattr(unit, "py_func"))}
found["bits"] = draw(np.uint64(Key(1).for_(Domain.DROPOUT, 5)), np.arange(50, dtype=np.uint64))
found["units"] = np.array([unit(np.uint64(1 << 63) + np.uint64(n << 40)) for n in range(50)])
found["order"] = permute_range(3, 60, 100, np.uint64(9))
keys = DropoutKey(1, 2, torch.arange(2)).expand(1)[0]
found["factors"] = keep_factors(keys, torch.arange(3, dtype=torch.int32)[None], 8, 0.3).numpy()
vocabulary = Vocabulary(SpecialIds(0, 1, 2, 3, 4), np.arange(store.vocab_size) >= 60)
for objective in ("next_sentence", "sentence_order", "none"):
    sampler = EpochSampler(store, 24, objective=objective, short_probability=0.3, keys=(1, 0))
    samples = sampler.samples(0, 40)
    found[f"samples {objective}"] = samples
    for whole_words in (True, False):
        masking = Masking(max_predictions=3, whole_words=whole_words)
        collator = Collator(sampler, vocabulary, masking, 7, 2, first_sample=1000)
        found[f"counts {objective} {whole_words}"] = np.array(collator.counts(samples, 0))
        for name, tensor in collator.build(samples, 0, 5)._asdict().items():
            found[f"batch {objective} {whole_words} {name}"] = tensor.numpy()
np.savez(sys.argv[2], **found)
"""


def _run(store_dir: Path, path: Path, **environment: str) -> dict[str, np.ndarray]:
    command = [sys.executable, "-P", "-c", _SCRIPT, str(store_dir), str(path)]
    subprocess.run(command, check=True, env={**os.environ, **environment}, timeout=300)
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.slow
def test_plain_python_gives_the_same(text_dir: Path, tmp_path: Path) -> None:
    compiled = _run(text_dir / "tokens", tmp_path / "compiled.npz")
    plain = _run(text_dir / "tokens", tmp_path / "plain.npz", NUMBA_DISABLE_JIT="1")
    assert compiled.pop("compiled") and not plain.pop("compiled")
    assert compiled.keys() == plain.keys()
    for name, array in compiled.items():
        assert np.array_equal(array, plain[name]), name
