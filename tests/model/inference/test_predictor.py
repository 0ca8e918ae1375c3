"""Fine-tuned models that answer: as the job judged them, streaming, from published folders and `transformers`'."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    pipeline,
)

from model import load_finetuned
from model.benchmarks.splits import read_dev
from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.common.state_files import read_state
from model.config.hardware import HardwareOptions
from model.finetune.job import Job
from model.finetune.run import run_job
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer

CPU = HardwareOptions(accelerator="cpu", precision="fp32")
KINDS = ("sst2", "stsb", "swag", "squad1", "squad2", "ner")


@pytest.fixture(scope="module")
def jobs(small_encoder: Path, small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """A finished job for each kind of head."""
    from model.config.finetuning import FinetuneRecipe

    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("jobs")
    made = {}
    for name in KINDS:
        recipe = {
            "batch_size": 16,
            "learning_rate": 3e-3,
            "num_epochs": 10,
            "max_length": 32,
            "doc_stride": 8,
            "dropout": 0.0,
        }
        made[name] = Job(
            digest="0123456789abcdef",
            encoder_name="small",
            encoder_dir=small_encoder,
            benchmark=name,
            data_dir=small_data,
            recipe=FinetuneRecipe(**recipe, max_query_length=16),
            seed=1,
            run_dir=folder / name,
            machine=HardwareOptions(accelerator="cpu", precision="fp32", num_threads=1),
        )
        run_job(made[name])
    yield made
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def predictions(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.run_dir / "predictions.jsonl").open()]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def named_predictions(job: Job) -> list[Any]:
    """The job's predictions; labels that are numbers by their names, as the model answers."""
    names = job.row.label_names
    return [names.get(row["prediction"], row["prediction"]) if names else row["prediction"] for row in predictions(job)]


@pytest.mark.parametrize("name", KINDS)
def test_it_judges_and_answers_the_dev_set_as_the_job_did(jobs: dict[str, Job], name: str) -> None:
    job = jobs[name]
    finetuned = load_finetuned(job.run_dir / "model", machine=CPU)
    assert finetuned.row == job.row and finetuned.recipe == job.recipe
    [part] = read_dev(job.row, job.data_dir).values()
    outcome = finetuned.evaluate(part.examples)
    assert as_json(outcome.predictions) == predictions(job)
    assert outcome.scores == read_state(job.result_path)["scores"]
    assert finetuned.chosen == outcome.chosen
    answers = finetuned.predict(part.examples)
    assert [answer["prediction"] for answer in as_json(answers)] == named_predictions(job)
    assert [answer["id"] for answer in answers] == [example.id for example in part.examples]


@pytest.mark.parametrize(
    ("name", "adapt"),
    [
        ("ner", {"kind": "features", "lstm_size": 16, "lstm_layers": 1}),
        ("sst2", {"kind": "features"}),
        ("sst2", {"kind": "lora"}),
    ],
)
def test_models_that_were_adapted_in_other_ways_answer(
    make_job: Callable[..., Job], torch_as_it_was: None, name: str, adapt: dict[str, Any]
) -> None:
    job = make_job(name, num_epochs=2, adapt=adapt)
    run_job(job)
    finetuned = load_finetuned(job.run_dir / "model", machine=CPU)
    [part] = read_dev(job.row, job.data_dir).values()
    found = as_json(finetuned.predict(part.examples))
    assert [answer["prediction"] for answer in found] == named_predictions(job)
    if name == "ner":
        (job.run_dir / "model" / "features_head.safetensors").unlink()
        with pytest.raises(UserError, match=r"features_head.safetensors: missing"):
            load_finetuned(job.run_dir / "model", machine=CPU)


def test_classes_have_probabilities(jobs: dict[str, Job]) -> None:
    finetuned = load_finetuned(jobs["sst2"].run_dir / "model", machine=CPU)
    good, bad = finetuned.predict(["the film was great .", {"text": "the plot was awful .", "id": 7}])
    assert (good["prediction"], bad["prediction"], bad["id"]) == ("positive", "negative", 7)
    assert "id" not in good
    assert finetuned.predict("the film was great .") == [good], "a text is a row, not its characters"
    for answer in (good, bad):
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert answer["score"] == answer["probabilities"][answer["prediction"]] > 0.5


def test_a_choice_names_its_ending(jobs: dict[str, Job]) -> None:
    finetuned = load_finetuned(jobs["swag"].run_dir / "model", machine=CPU)
    endings = ["it was bad", "it was good", "it was poor", "it was bad"]
    [answer] = finetuned.predict([{"context": "the film was good .", "endings": endings}])
    assert (answer["prediction"], answer["text"]) == ("1", "it was good")


def test_spans_are_slices_of_the_context(jobs: dict[str, Job]) -> None:
    context = "it is , it is , it is . " * 4 + "the scene was in rome and the actor was anna ."  # several windows
    asked = {"question": "the scene of it is in", "context": context}
    for name in ("squad1", "squad2"):
        [answer] = load_finetuned(jobs[name].run_dir / "model", machine=CPU).predict([asked])
        if answer.get("answerable", True):
            assert context[answer["start"] : answer["end"]] == answer["prediction"] != ""
            assert 0 < answer["score"] <= 1
        else:
            best = answer["best_span"]
            assert answer["prediction"] == "" and answer["start"] is None
            assert context[best["start"] : best["end"]] == best["text"]
    assert "null_odds" in answer and isinstance(answer["answerable"], bool)


def test_the_null_threshold_decides(jobs: dict[str, Job]) -> None:
    finetuned = load_finetuned(jobs["squad2"].run_dir / "model", machine=CPU)
    asked = [("the scene of it is in", "the scene was in rome .")]
    for threshold, answerable in ((1e9, True), (-1e9, False)):
        finetuned.chosen["null_threshold"] = threshold
        assert finetuned.predict(asked)[0]["answerable"] is answerable


def test_entities_lie_in_the_users_text(jobs: dict[str, Job]) -> None:
    finetuned = load_finetuned(jobs["ner"].run_dir / "model", machine=CPU)
    text = "  Paris,  and Anna!"
    [answer] = finetuned.predict([text])
    assert [(one["text"], one["type"], one["start"]) for one in answer["entities"]] == [
        ("Paris", "LOC", 2),
        ("Anna", "PER", 14),
    ]
    assert all(text[one["start"] : one["end"]] == one["text"] for one in answer["entities"])
    assert len(answer["words"]) == len(answer["prediction"]) == 5
    assert finetuned.predict([""])[0]["entities"] == []


def test_a_stream_is_bounded_in_order_and_independent_of_its_windows(jobs: dict[str, Job]) -> None:
    finetuned = load_finetuned(jobs["sst2"].run_dir / "model", machine=CPU)
    texts = [("the film was great . " * (1 + number % 7)).strip() for number in range(100)]
    read = 0

    def rows() -> Iterator[tuple[str, str]]:
        nonlocal read
        for number, text in enumerate(texts):
            read += 1
            yield f"row {number}", text

    answers = finetuned.stream(rows(), window_rows=16)
    first = next(answers)
    assert read == 16
    found = [first, *answers]
    whole = finetuned.predict(texts)
    assert [one["prediction"] for one in found] == [one["prediction"] for one in whole]
    np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in whole], atol=2e-6)


def test_bad_rows_are_named_or_answered(jobs: dict[str, Job]) -> None:
    finetuned = load_finetuned(jobs["sst2"].run_dir / "model", machine=CPU)
    with pytest.raises(UserError, match="^row 1: 'text': expected text, found int$"):
        finetuned.predict(["fine", {"text": 4}])
    rows = [("line 1", "fine"), ("line 2", UserError("not JSON")), ("line 3", 5), ("line 4", "bad")]
    answers = list(finetuned.stream(rows, skip_bad=True))
    assert [set(answer) == {"error"} for answer in answers] == [False, True, True, False]
    assert answers[1]["error"] == "line 2: not JSON"
    assert finetuned.predict([]) == []


def damaged(what: Callable[[Path], None], folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    what(copy)
    return copy


def test_damage_is_one_line(jobs: dict[str, Job], tmp_path: Path) -> None:
    def cut(name: str) -> Callable[[Path], None]:
        return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40])  # type: ignore[func-returns-value]

    def head(**changes: Any) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            write_json(folder / "head.json", {**read_json(folder / "head.json"), **changes})

        return change

    def without_head(folder: Path) -> None:
        row = read_json(folder / "head.json")["row"]
        head(row={key: value for key, value in row.items() if key != "head"})(folder)

    for what, message in (
        (cut("head.json"), "head.json: not JSON"),
        (cut("model.safetensors"), "model.safetensors: damaged"),
        (cut("config.json"), "config.json: not JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: missing"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: missing"),
        (
            lambda folder: (folder / "head.json").unlink(),
            "head.json: missing; give the task of a model of transformers",
        ),
        (head(labels=["a", "b"]), "labels a, b where the benchmark 'sst2' has 0, 1"),
        (head(null_threshold="x"), "'null_threshold': expected a number"),
        (head(recipe={"max_lenght": 8}), "did you mean 'max_length'"),
        (without_head, "head.json: row: 'head' is missing"),
    ):
        folder = damaged(what, jobs["sst2"].run_dir / "model", tmp_path)
        with pytest.raises(UserError, match=message) as caught:
            load_finetuned(folder, machine=CPU)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="fine-tuned for 'sst2', not for 'rte'"):
        load_finetuned(jobs["sst2"].run_dir / "model", "rte", machine=CPU)
    with pytest.raises(UserError, match=r"no tensor 'classifier.weight'"):
        load_finetuned(jobs["sst2"].encoder_dir, "sst2", machine=CPU)


def test_a_folder_without_the_row_names_it(jobs: dict[str, Job], tmp_path: Path) -> None:
    def forget(folder: Path) -> None:
        content = read_json(folder / "head.json")
        assert content["row"]["name"] == content["benchmark"]
        del content["row"]
        write_json(folder / "head.json", content)

    folder = damaged(forget, jobs["squad2"].run_dir / "model", tmp_path)
    assert load_finetuned(folder, machine=CPU).row == jobs["squad2"].row


WORDS = ["the", "a", "film", "was", "good", "bad", "anna", "ben", "in", "rome", "and", "it", "is", "who", "where"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def of_transformers(kind: Any, folder: Path, **settings: Any) -> Path:
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *WORDS, ".", ",", "?"])
    save_tokenizer(tokenizer, folder)
    torch.manual_seed(0)
    config = BertConfig(**SMALL, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, **settings)
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return folder


def test_their_classes_are_ours(tmp_path: Path) -> None:
    labels = ["entailment", "NEUTRAL", "contradiction"]  # not in the order of the table
    folder = of_transformers(BertForSequenceClassification, tmp_path, id2label=dict(enumerate(labels)))
    theirs = pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    pairs = [("the film was good", "it is bad ."), ("who is in rome ?", "anna and ben")]
    ours = load_finetuned(folder, "mnli", machine=CPU)
    assert ours.row.labels == ("entailment", "neutral", "contradiction")
    for pair, answer in zip(pairs, ours.predict(pairs)):
        expected = {one["label"].lower(): one["score"] for one in theirs({"text": pair[0], "text_pair": pair[1]})}
        assert answer["probabilities"] == pytest.approx(expected, abs=1e-5)
    assert load_finetuned(folder, "pair", machine=CPU).row.labels == tuple(labels)
    with pytest.raises(UserError, match=r"'qa_outputs.weight'"):
        load_finetuned(folder, "span", machine=CPU)
    with pytest.raises(UserError, match="unknown benchmark 'mnly'; did you mean 'mnli'"):
        load_finetuned(folder, "mnly", machine=CPU)


def test_their_regression_is_ours(tmp_path: Path) -> None:
    folder = of_transformers(BertForSequenceClassification, tmp_path, num_labels=1)
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), BertForSequenceClassification.from_pretrained(folder)
    pair = ("the film was good", "it is bad .")
    with torch.no_grad():
        expected = theirs.eval()(**tokenizer(*pair, return_tensors="pt")).logits.item()
    for task in ("stsb", "pair"):
        [answer] = load_finetuned(folder, task, machine=CPU).predict([pair])
        assert answer["prediction"] == pytest.approx(expected, abs=1e-5)


def test_their_labels_without_names_are_theirs(tmp_path: Path) -> None:
    folder = of_transformers(BertForSequenceClassification, tmp_path)
    assert load_finetuned(folder, "classification", machine=CPU).row.labels == ("LABEL_0", "LABEL_1")
    assert load_finetuned(folder, "cola", machine=CPU).row.labels == ("0", "1")


def test_their_tags_are_ours(tmp_path: Path) -> None:
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    folder = of_transformers(BertForTokenClassification, tmp_path, id2label=dict(enumerate(labels)))
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), BertForTokenClassification.from_pretrained(folder)
    words = ["anna", "was", "in", "rome", ",", "and", "ben"]
    with torch.no_grad():
        logits = theirs.eval()(**tokenizer(" ".join(words), return_tensors="pt")).logits[0, 1:-1]
    expected = [labels[number] for number in logits.argmax(dim=-1).tolist()]
    for task in ("tagging", "ner"):
        [answer] = load_finetuned(folder, task, machine=CPU).predict([" ".join(words)])
        assert (answer["words"], answer["prediction"]) == (words, expected)


def test_their_answers_are_ours(tmp_path: Path) -> None:
    folder = of_transformers(BertForQuestionAnswering, tmp_path)
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), BertForQuestionAnswering.from_pretrained(folder)
    question, context = "where is anna ?", "anna is in rome , and ben was in paris ."
    inputs = tokenizer(question, context, return_tensors="pt")
    with torch.no_grad():
        output = theirs.eval()(**inputs)
    inside = (inputs["token_type_ids"][0] == 1).nonzero()[:-1, 0]  # without the last [SEP]
    starts, ends = (logits[0, inside].softmax(-1) for logits in (output.start_logits, output.end_logits))
    joint = torch.triu(starts[:, None] * ends[None, :])
    first, last = divmod(int(joint.argmax()), len(ends))
    words = context.split()
    [answer] = load_finetuned(folder, "span", machine=CPU).predict([(question, context)])
    assert answer["prediction"] == " ".join(words[first : last + 1])
    assert answer["score"] == pytest.approx(joint.max().item(), abs=1e-5)
