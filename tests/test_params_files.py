"""Shipped parameter files say what their names promise."""

from __future__ import annotations

from pathlib import Path

import yaml

from tasks.params.root import load_params


def test_the_shuffled_twin_differs_in_nothing_else(root: Path) -> None:
    sample = yaml.safe_load((root / "params.yaml").read_text())
    twin = yaml.safe_load((root / "params" / "sample-shuffled.yaml").read_text())
    assert twin["corpus"].pop("shuffle_words") is True
    assert twin == sample


def test_the_sample_with_seeds_differs_in_fine_tuning_alone(root: Path) -> None:
    sample = yaml.safe_load((root / "params.yaml").read_text())
    seeds = yaml.safe_load((root / "params" / "sample-seeds.yaml").read_text())
    grid = sample["finetune"].pop("grid")["learning_rate"]
    assert seeds["finetune"]["recipe"].pop("learning_rate") in grid
    assert seeds["finetune"].pop("seeds") == [1, 2, 3] and sample["finetune"].pop("seeds") == [1]
    assert seeds == sample


def test_the_cased_preset_differs_in_vocabulary_and_benchmark(root: Path) -> None:
    cased = yaml.safe_load((root / "params" / "bert-base-cased.yaml").read_text())
    base = yaml.safe_load((root / "params" / "bert-base.yaml").read_text())
    assert cased.pop("tokenizer") == {"vocab_size": 28_996, "lowercase": False} != base.pop("tokenizer")
    assert (
        cased["pretrain"]["encoders"][0].pop("name") == "bert-base-cased" != base["pretrain"]["encoders"][0].pop("name")
    )
    assert cased["finetune"].pop("benchmarks") == {"ner": None}
    assert cased["finetune"]["recipe"].pop("max_length") == 512
    assert [one["name"] for one in cased.pop("fetch")["sources"]] == ["wikipedia"]
    assert base.pop("fetch") and cased["corpus"]["sources"].pop() != base["corpus"]["sources"].pop(), "books with case"
    assert cased == base


def test_fetch_sources_are_pinned(root: Path) -> None:
    for path in sorted((root / "params").glob("*.yaml")):
        fetch = load_params(path).fetch
        assert all(source.pins for source in fetch.sources), path.name
        assert all(len(pin) in (40, 64) for source in fetch.sources for pin in source.pins.values())
    covered = {source.to.partition("/")[0] for source in load_params(root / "params" / "bert-base.yaml").fetch.sources}
    assert covered == {"wikipedia", "books", "glue", "squad", "swag", "encoders"}


def test_the_papers_recipe(root: Path) -> None:
    for name, hidden in (("base", 768), ("large", 1024)):
        params = load_params(root / "params" / f"bert-{name}.yaml")
        [encoder] = params.pretrain.encoders
        assert encoder.shape.build(params.tokenizer.vocab_size).hidden_size == hidden
        recipe = params.pretrain.recipe_of(encoder)
        tokens = sum(phase.num_steps * phase.batch_size * phase.sequence_length for phase in recipe.phases)
        assert recipe.num_steps == 1_000_000
        assert tokens == 42_598_400_000  # RECIPE: 42.6 billion
        assert (recipe.warmup_steps, recipe.betas, recipe.eps, recipe.weight_decay) == (
            10_000,
            (0.9, 0.999),
            1e-6,
            0.01,
        )
        rates = {recipe.learning_rate for recipe in params.finetune.recipes("rte")}
        assert rates == {5e-5, 4e-5, 3e-5, 2e-5}
        for benchmark in params.finetune.benchmarks:
            for found in params.finetune.recipes(benchmark):
                assert not found.bias_correction and found.document_context and found.batches == "shuffled"
                assert (found.dropout, found.warmup_fraction, found.weight_decay) == (0.1, 0.1, 0.01)
        assert len(params.finetune.benchmarks) == 13
