"""Training and validation under each objective: which metrics there are, and what validation is a function of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.common.errors import Paused
from model.common.state_files import read_state
from model.config.pretraining import PretrainRecipe, PretrainRun
from model.data.token_store import TokenStore, TokenStoreWriter
from model.objectives import OBJECTIVES
from model.pretrain.evaluation import Validation
from model.tokenizer.wordpiece import Vocabulary, load_tokenizer
from tests.model.pretraining import MakeRun, train

PAIR_METRICS = {"next_sentence": "nsp", "sentence_order": "sop", "pair_without_loss": None, "none": None}


@pytest.mark.parametrize("objective", PAIR_METRICS)
def test_the_metrics_are_those_of_the_objective(
    make_run: MakeRun, objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(sentence_objective=objective, masking={"whole_words": True})
    train(run)
    final = read_state(run.run_dir / "result.json")["final"]
    name = PAIR_METRICS[objective]
    for part in ("train", "heldout"):
        found = {key.split("/")[1] for key in final if key.startswith(part)}
        pair_metrics = {f"{name}_loss", f"{name}_accuracy"} if name else set()
        assert found - {"learning_rate", "grad_norm"} == {"loss", "mlm_loss", "mlm_accuracy"} | pair_metrics
        loss = final[f"{part}/mlm_loss"] + (final[f"{part}/{name}_loss"] if name else 0)
        assert final[f"{part}/loss"] == pytest.approx(loss, abs=2e-6)
    said = capsys.readouterr().out
    assert all((f", {other} " in said) == (other == name) for other in ("nsp", "sop"))


def test_a_packed_run_goes_on_where_it_was(make_run: MakeRun) -> None:
    settings = {"sentence_objective": "none", "masking": {"whole_words": True}, "accumulate": 2}
    whole, stopped = make_run("whole", **settings), make_run("stopped", **settings)
    train(whole)
    with pytest.raises(Paused):
        train(stopped, 13)
    train(stopped)
    for name in ("result.json", "encoder/model.safetensors"):
        assert (stopped.run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes()


def validated(text_dir: Path, run: PretrainRun) -> tuple[list[float], int]:
    """The sums and the number of predictions of a validation of one and the same module."""
    torch.manual_seed(0)
    store = TokenStore.open(text_dir / "tokens", "heldout")
    module = OBJECTIVES[run.recipe.sentence_objective].build(run.shape.build(store.vocab_size))
    vocabulary = Vocabulary.of(load_tokenizer(text_dir / "tokenizer"))
    sums, tally = Validation(run.recipe, store, vocabulary).run(module, module, 0, 0, 1)
    return sums.tolist(), tally.num_predictions


@pytest.mark.parametrize("objective", PAIR_METRICS)
def test_validation_does_not_depend_on_the_masks_of_training(text_dir: Path, make_run: MakeRun, objective: str) -> None:
    expected = validated(text_dir, make_run(sentence_objective=objective))
    for masking in ({"whole_words": True}, {"rate": 0.3, "mask": 0.5}, {"max_predictions": 1}):
        run = make_run(sentence_objective=objective, masking=masking, seed=2)
        assert validated(text_dir, run) == expected


def test_pairs_without_loss_are_the_pairs_of_next_sentence(text_dir: Path, make_run: MakeRun) -> None:
    (both, count), (masked, same_count) = (
        validated(text_dir, make_run(sentence_objective=name)) for name in ("next_sentence", "pair_without_loss")
    )
    assert (masked, same_count) == (both[:2], count) and len(both) == 4
    packed, _ = validated(text_dir, make_run(sentence_objective="none"))
    assert packed != masked


@pytest.mark.parametrize(("objective", "is_on"), [("next_sentence", False), ("sentence_order", True), ("none", True)])
def test_there_is_validation_where_there_are_samples(
    text_dir: Path, tmp_path: Path, objective: str, is_on: bool
) -> None:
    writer = TokenStoreWriter(tmp_path, 120, tokenizer_digest="x")
    writer.add_document([[7, 8, 9], [10, 11]], "heldout")
    writer.close()
    recipe = PretrainRecipe.parse({"sentence_objective": objective}, "test")
    vocabulary = Vocabulary.of(load_tokenizer(text_dir / "tokenizer"))
    assert Validation(recipe, TokenStore.open(tmp_path, "heldout"), vocabulary).is_on == is_on


def test_words_are_known_by_their_pieces(small_encoder: Path) -> None:
    vocabulary = Vocabulary.of(load_tokenizer(small_encoder))
    assert np.flatnonzero(vocabulary.is_continuation).tolist() == [load_tokenizer(small_encoder).token_to_id("##s")]
    assert vocabulary.specials.mask == 4
