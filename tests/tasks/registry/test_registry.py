"""Versions, promotion, rollback and history in a real MLflow (SQLite)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.registry_commands import _find_version
from model.common.errors import UserError
from model.common.files import read_json
from tasks.leaderboard import history
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.schema import Leaderboard
from tasks.project.project import Project
from tasks.project.stage_versions import write_versions
from tasks.registry import champion
from tasks.registry.mlflow_registry import BEST, CHALLENGER, CHAMPION, Registry, register
from tests.tasks.registry.registered import ENCODER, flip, save_tiny, write_run

pytestmark = pytest.mark.slow  # MLflow makes its tables


def settings(project: Project, **values: object) -> None:
    content = yaml.safe_load(project.params_path.read_text())
    content["promotion"] = values
    project.params_path.write_text(yaml.safe_dump(content))


def aliases(project: Project, alias: str) -> dict[str, int]:
    client = Registry(project).client
    found = {one.name: one.aliases for one in client.search_registered_models()}
    return {name: int(held[alias]) for name, held in found.items() if alias in held}


def test_from_registration_to_rollback(tracked_project: Project, tmp_path: Path) -> None:
    project = tracked_project
    version = register(project)
    assert (version.encoder, version.number) == (ENCODER, 1), "the scratch encoder is none to register by itself"
    assert aliases(project, CHALLENGER) == {"cloze-encoder": 1, "cloze-sst2": 1, "cloze-rte": 1}
    assert register(project) == version, "the same is registered once"

    with pytest.raises(UserError, match="needs a reason"):
        champion.promote(project, version, force=True)
    settings(project, must_not_fall=["sst2"])
    first = champion.promote(project, version)
    assert not first.promoted and "no git commit" in first.verdict.reason, "a record made from the board has none"
    assert champion.current(project) is None
    forced = champion.promote(project, version, "the first one", force=True)
    assert forced.promoted and aliases(project, CHAMPION) == {"cloze-encoder": 1, "cloze-sst2": 1, "cloze-rte": 1}
    assert champion.promote(project, version).event is None, "it is the champion already"
    assert aliases(project, BEST) == aliases(project, CHAMPION)

    write_run(project, shift=3.0, seed=1)
    better = register(project)
    assert better.number == 2 and aliases(project, CHALLENGER)["cloze-encoder"] == 2
    verdict = champion.assess(project, better)
    assert verdict.difference == pytest.approx(3.0)
    assert [rule.name for rule in verdict.rules if not rule.passed] == ["card is complete"]
    assert champion.promote(project, better, "better data", force=True).promoted
    assert aliases(project, CHAMPION) == {"cloze-encoder": 2, "cloze-sst2": 2, "cloze-rte": 2}
    assert aliases(project, BEST) == aliases(project, CHAMPION), "it is significantly better"

    write_run(project, shift=-9.0, seed=2)
    worse = champion.promote(project, register(project))
    assert not worse.promoted
    assert {rule.name for rule in worse.verdict.rules if not rule.passed} >= {"average", "sst2 must not fall"}
    assert aliases(project, CHAMPION)["cloze-encoder"] == 2, "a refusal changes nothing"
    looks = [found.look and found.look.number for found in (verdict, worse.verdict, champion.assess(project, better))]
    assert looks == [1, 2, 3], "version 2 with itself would be the third pair"
    again = champion.promote(project, worse.version)
    assert again.verdict.look == worse.verdict.look, "the same pair is the same look"
    assert [change.version for change in again.verdict.changes] == [str(better)]
    assert again.verdict.changes[0].since == f"first champion, {version}"
    assert again.verdict.changes[0].difference == pytest.approx(3.0)

    event = champion.rollback(project, "a customer's complaint")
    assert (event.version, event.before) == (1, 2)
    assert aliases(project, CHAMPION) == {"cloze-encoder": 1, "cloze-sst2": 1, "cloze-rte": 1}
    assert aliases(project, BEST) == aliases(project, CHAMPION), "a rolled-back version is not the best one"
    with pytest.raises(UserError, match="no champion before it"):
        champion.rollback(project, "again")
    told = [(one.act, one.version, one.before) for one in champion.history(project)]
    assert told == [
        ("refused", 1, None),
        ("forced", 1, None),
        ("forced", 2, 1),
        ("refused", 3, 2),
        ("refused", 3, 2),
        ("rolled back", 1, 2),
    ]
    assert [one.best for one in champion.history(project)] == [None, 1, 2, 2, 2, 1]
    events = champion.history(project)
    assert all(one.reason and one.when for one in events)
    assert events[2].reason.startswith("better data (") and events[3].verdict is not None
    tags = {one.number: one.tags for one in Registry(project).versions()}
    assert "a customer's complaint" in tags[2]["cloze.rolled_back"] and "cloze.rolled_back" not in tags[1]
    assert "a customer's complaint" in tags[1]["cloze.restored"]
    assert "average" in tags[3]["cloze.refused"]

    registry = Registry(project)
    now = champion.current(project)
    assert now is not None
    folder = registry.fetch(now, tmp_path, "sst2")
    assert {"config.json", "model.safetensors", "README.md", "digests.json", "head.json"} <= {
        path.name for path in folder.iterdir()
    }
    with pytest.raises(UserError, match="no model for 'qnli'; available: rte, sst2"):
        registry.fetch(now, tmp_path, "qnli")
    stored = project.mlflow_home / "artifacts" / now.run_id / "artifacts" / "encoder" / "model.safetensors"
    flip(stored)
    with pytest.raises(UserError, match=r"model\.safetensors: its SHA-256 is"):
        registry.fetch(now, tmp_path / "again")
    assert not [path for path in project.mlflow_home.rglob("*") if path.suffix in (".pkl", ".pickle", ".bin", ".pt")]


def test_best_stays_until_a_better_one_comes_or_it_is_reset(tracked_project: Project) -> None:
    project = tracked_project
    settings(project, margin=2.0)
    champion.promote(project, register(project), "the first one", force=True)
    for number, shift in enumerate((-1.0, -2.0, -3.0), start=1):
        write_run(project, shift=shift, seed=number)
        found = champion.promote(project, register(project))
        average = next(rule for rule in found.verdict.rules if rule.name == "average")
        assert average.passed == (shift >= -2.0), "measured from the first champion, whoever is the latest"
        champion.promote(project, found.version, "the card", force=True)
        assert aliases(project, BEST)["cloze-encoder"] == 1
        assert aliases(project, CHAMPION)["cloze-encoder"] == number + 1
    assert found.verdict.look is not None and found.verdict.look.number == 3, "the same pair, forced, is the same look"
    with pytest.raises(UserError, match="needs a reason"):
        champion.promote(project, found.version, reset_best=True)
    champion.promote(project, found.version, "a source had to be removed", reset_best=True)
    assert aliases(project, BEST) == aliases(project, CHAMPION)
    assert champion.best(project) == champion.current(project)


class Killed(BaseException):
    """Where a process was killed."""


def killed_at(monkeypatch: pytest.MonkeyPatch, project: Project, method: str, last: str = "") -> None:
    """Register, and be killed in a method of MLflow's client (when its first argument ends so)."""
    from mlflow.tracking import MlflowClient

    real = getattr(MlflowClient, method)

    def kill(self: MlflowClient, *arguments: Any, **more: Any) -> Any:
        if arguments[0].endswith(last):
            raise Killed
        return real(self, *arguments, **more)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(MlflowClient, method, kill)
        register(project)


def test_equal_weights_are_not_promoted_again(tracked_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tracked_project
    monkeypatch.setattr("tasks.registry.mlflow_registry.faults", lambda _: ())  # the cards of made-up runs have some
    champion.promote(project, register(project), "the first one", force=True)
    write_run(project, shift=3.0, seed=1)
    save_tiny(project.build / "pretrain" / ENCODER, seed=0)  # the same encoder, fine-tuned in another way
    found = champion.promote(project, register(project))
    assert found.verdict.promoted and found.event is None and found.version.number == 2
    assert aliases(project, CHAMPION)["cloze-encoder"] == 1
    assert champion.promote(project, found.version, "for its fine-tuned models", force=True).promoted
    assert aliases(project, CHAMPION)["cloze-encoder"] == 2


def test_what_a_kill_left_is_gone_on_with_or_removed(tracked_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tracked_project
    registry = Registry(project)

    def state() -> tuple[int, dict[str, list[int]]]:
        runs = registry.client.search_runs([registry.experiment], "tags.`cloze.kind` = 'registration'")
        models = ("cloze-encoder", "cloze-rte", "cloze-sst2")
        return len(runs), {model[6:]: [version.number for version in registry.versions(model)] for model in models}

    killed_at(monkeypatch, project, "log_artifacts")
    assert state() == (1, {"encoder": [], "rte": [], "sst2": []})
    killed_at(monkeypatch, project, "create_model_version", last="-encoder")
    assert state() == (1, {"encoder": [], "rte": [1], "sst2": [1]}), "what was not sent whole was sent again"
    with monkeypatch.context() as patched:
        patched.setattr("mlflow.tracking.MlflowClient.log_artifacts", None)  # nothing is sent again
        version = register(project)
    assert state() == (1, {"encoder": [1], "rte": [1], "sst2": [1]})
    assert aliases(project, CHALLENGER) == {"cloze-encoder": 1, "cloze-sst2": 1, "cloze-rte": 1}

    write_run(project, shift=1.0, seed=1)
    killed_at(monkeypatch, project, "create_model_version", last="-encoder")
    assert state() == (2, {"encoder": [1], "rte": [2, 1], "sst2": [2, 1]})
    write_run(project, shift=2.0, seed=2)
    assert register(project).number == 2
    assert state() == (2, {"encoder": [2, 1], "rte": [3, 1], "sst2": [3, 1]}), "nobody asks for the half any more"
    assert registry.of_registration(version.registration) == {"cloze-rte": 1, "cloze-sst2": 1, "cloze-encoder": 1}


def test_one_without_a_leaderboard_is_no_candidate(tracked_project: Project) -> None:
    project = tracked_project
    with pytest.raises(UserError, match="no encoder 'nobody' in build/pretrain; available: from-scratch, sample-mini"):
        register(project, "nobody")
    (project.build / "leaderboard" / "leaderboard.json").unlink()
    with pytest.raises(UserError, match="nothing to register; run `cloze run` first"):
        register(project)


def test_a_registered_run_is_found_after_its_directory_got_another_one(tracked_project: Project) -> None:
    project = tracked_project
    write_versions(project.root)

    def record(key: str) -> None:
        content = read_json(project.build / "leaderboard" / "leaderboard.json")
        facts = {"pipeline": key, "written": f"2026-01-0{key[0]}T00:00:00+0000"}
        made = history.record_of(Leaderboard.parse(content, "leaderboard.json"), {}, facts)
        history.keep(project.leaderboards, made, "", Inputs(project.build / "finetune"))

    record("1" * 16)
    first = _find_version(project, f"{ENCODER}@11111111")
    assert str(first) == f"{ENCODER}@11111111 (version 1 of cloze-encoder)"
    write_run(project, seed=1)
    record("2" * 16)
    assert [_find_version(project, name) for name in (f"{ENCODER}@1111", "1111")] == [first, first]
    assert _find_version(project, "2222").number == 2
    with pytest.raises(UserError, match="run pipeline-11111111: its models are no longer in the project's directory"):
        _find_version(project, "from-scratch@1111")


def test_a_leaderboard_of_earlier_encoders_is_not_registered(tracked_project: Project) -> None:
    """`cloze pretrain` alone publishes an encoder that the leaderboard has not seen."""
    register(tracked_project)
    path = tracked_project.root / "dvc.lock"
    entries = {"build/pretrain": "1" * 32, "build/finetune": "2" * 32}
    outs = {place: [{"path": place, "md5": f"{md5}.dir"}] for place, md5 in entries.items()}
    board = [{"path": place, "md5": f"{'0' * 32}.dir"} for place in entries]
    stages = {"pretrain": {"outs": outs["build/pretrain"]}, "finetune": {"outs": outs["build/finetune"]}}
    path.write_text(yaml.safe_dump({"schema": "2.0", "stages": {**stages, "leaderboard": {"deps": board}}}))
    with pytest.raises(
        UserError, match=r"build/leaderboard is older than build/\w+ and build/\w+, .*run `cloze run` first"
    ):
        register(tracked_project)


def test_a_server_that_is_not_there(finished_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project = finished_project
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:secret@127.0.0.1:9")
    with pytest.raises(UserError) as fault:
        champion.current(project)
    assert "MLflow at 127.0.0.1:9" in str(fault.value) and "secret" not in str(fault.value)
