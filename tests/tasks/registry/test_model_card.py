"""The card says what the records say, and what they lack."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from model.common.digests import write_digests
from model.common.files import read_json
from tasks.project.project import Project
from tasks.registry.artifacts import copy_published
from tasks.registry.model_card import faults, gather, render
from tests.tasks.registry.registered import ENCODER, front_matter


def test_the_card_of_an_encoder(finished_project: Project, tmp_path: Path) -> None:
    project = finished_project
    folder = tmp_path / "out"
    copy_published(project.build / "pretrain" / ENCODER, folder)
    config = read_json(folder / "config.json")
    assert config["sentence_labels"] == {"0": "is_next", "1": "not_next"}
    digests = write_digests(folder)
    facts = gather(project, ENCODER, folder)
    card = render(facts)
    front = front_matter(card)
    assert (front["language"], front["license"], front["pipeline_tag"]) == (["en"], "other", "fill-mask")
    assert "next sentence (`cls.seq_relationship`, 0 = is next, 1 = not next)" in card
    bare = dataclasses.replace(facts, config={**facts.config, "architectures": ["BertModel"]})
    assert "Pre-training heads: none." in render(bare)
    assert front_matter(render(bare))["pipeline_tag"] == "feature-extraction"
    [index] = front["model-index"]
    measured = {one["dataset"]["type"]: one["metrics"][0] for one in index["results"]}
    assert set(measured) == {"sst2", "rte"} and measured["sst2"]["type"] == "accuracy"
    assert "| wikipedia | en | CC BY-SA 4.0 | a dump | 1,000 | 3 |" in card
    assert "own \\| old" in card, "what others wrote makes no column"
    assert digests["model.safetensors"] in card and "0" * 32 in card
    assert "3 rows of benchmarks' dev and test files were found" in card
    assert "| learning_rate |" not in card.split("## Scores")[0] or "phases" in card
    system = facts.system
    assert system is not None
    score = system.scores["sst2"]["accuracy"]
    assert f"| {score.mean:.2f} | {score.std:.2f} | 3 |" in card
    assert faults(facts) == ["no git commit"]
    assert "not measured" in render(dataclasses.replace(facts, timing={"seconds": 7200.0}))
    told = render(dataclasses.replace(facts, timing={"seconds": 7200.0, "energy_joules": 9e9}))
    assert "| pre-training | 2.0 h | 2.5 MWh |" in told
    sources = [{**facts.corpus["sources"][0], "name": "books", "license": "unknown"}]
    unknown = dataclasses.replace(facts, corpus={**facts.corpus, "sources": sources})
    assert faults(unknown) == ["no git commit"], "that a license is unknown is a statement"
    assert "The license of books is unknown: ask its publisher" in render(unknown)


def test_the_card_of_a_continued_encoder(finished_project: Project) -> None:
    facts = gather(finished_project, ENCODER, finished_project.build / "pretrain" / ENCODER)
    heldout = [{"step": 0, "mlm_loss": 3.0}, {"step": 9, "mlm_loss": 2.5}]
    general = [{"step": 0, "mlm_loss": 2.0}, {"step": 9, "mlm_loss": 2.125}]
    start = {"from": "encoders/mini", "digest": "d", "initialized": ["masked language modeling head"]}
    more = {"start": start, "heldout": heldout, "heldout_sources": {"heldout-wikipedia": general}}
    card = render(dataclasses.replace(facts, pretraining={**facts.pretraining, **more}))
    assert "Continued from encoders/mini, with an initialized masked language modeling head." in card
    assert "| its own text | 3.000 | 2.500 |" in card and "| wikipedia | 2.000 | 2.125 |" in card
    assert "Only measured, not trained on: wikipedia." in card
    assert "Continued from" not in render(facts)


def test_the_card_of_a_fine_tuned_model(finished_project: Project, tmp_path: Path) -> None:
    project = finished_project
    card = render(gather(project, ENCODER, project.build / "finetune" / ENCODER / "sst2" / "model", "sst2"))
    front = front_matter(card)
    assert front["pipeline_tag"] == "text-classification"
    assert [one["dataset"]["type"] for one in front["model-index"][0]["results"]] == ["sst2"]
    assert "AutoModelForSequenceClassification" in card and "| batch_size | 32 |" in card
    assert "have their publisher's own terms" in card


def test_what_is_missing_is_named(finished_project: Project) -> None:
    project = finished_project
    facts = gather(project, ENCODER, project.build / "pretrain" / ENCODER)
    corpus = {**facts.corpus, "sources": [{"name": "web", "language": "en"}]}
    bare = dataclasses.replace(facts, corpus=corpus, system=None, outputs={}, pretraining={})
    assert faults(bare) == [
        "corpus.sources: 'web' states no license; add `license` to it in params.yaml",
        "no record of the pre-training",
        "no scores (build/leaderboard)",
        "no digests of its inputs (dvc.lock)",
        "no git commit",
        "no digests of its files",
    ]
    card = render(bare)
    assert "not stated" in card and "Not measured." in card and "Not recorded on the machine" in card
    external = dataclasses.replace(facts, kind="external", corpus={}, pretraining={}, recipe={})
    assert "no record of the corpus" not in " ".join(faults(external))
    assert "See the encoder's own card." in render(external)
