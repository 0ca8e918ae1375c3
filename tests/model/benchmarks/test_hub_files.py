"""The hub's Parquet beside the original files: the same rows, whatever the label order; and what is found where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from model.benchmarks.readers.examples import Answer, ChoiceExample, SpanExample, TagExample
from model.benchmarks.sources import files_of
from model.benchmarks.splits import read_dev, read_test, read_train
from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from tasks.sample import SMALL, SampleSettings, make_sample

# config: (columns of the hub, its class names in their order, our label for each name), as its dataset cards have them
GLUE: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "cola": (("sentence",), {"unacceptable": "0", "acceptable": "1"}),
    "sst2": (("sentence",), {"negative": "0", "positive": "1"}),
    "mrpc": (("sentence1", "sentence2"), {"not_equivalent": "0", "equivalent": "1"}),
    "qqp": (("question1", "question2"), {"not_duplicate": "0", "duplicate": "1"}),
    "stsb": (("sentence1", "sentence2"), {}),
    "mnli": (("premise", "hypothesis"), {name: name for name in ("entailment", "neutral", "contradiction")}),
    "qnli": (("question", "sentence"), {name: name for name in ("entailment", "not_entailment")}),
    "rte": (("sentence1", "sentence2"), {name: name for name in ("entailment", "not_entailment")}),
    "wnli": (("sentence1", "sentence2"), {"not_entailment": "0", "entailment": "1"}),
}
NER = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, SampleSettings(**SMALL))
    return folder


def hub_rows(row: Benchmark, examples: Any) -> tuple[list[dict[str, Any]], Features]:
    """Examples as the hub's rows."""
    if row.head == "span":
        features = {"id": Value("string"), "question": Value("string"), "context": Value("string")}
        features["answers"] = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
        return [
            {
                "id": one.id,
                "question": one.question,
                "context": one.context,
                "answers": {
                    "text": [answer.text for answer in one.answers],
                    "answer_start": [answer.start for answer in one.answers],
                },
            }
            for one in examples
        ], Features(features)
    if row.head == "tags":
        features = {"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=NER))}
        return [{"tokens": list(one.words), "ner_tags": list(one.tags)} for one in examples], Features(features)
    if row.head == "choice":
        texts = ["sent1", "sent2", "ending0", "ending1", "ending2", "ending3"]
        features = {**{name: Value("string") for name in texts}, "label": ClassLabel(names=list("0123"))}
        return [
            {
                "sent1": one.context,
                "sent2": "",
                **{f"ending{number}": ending for number, ending in enumerate(one.endings)},
                "label": one.label,
            }
            for one in examples
        ], Features(features)
    columns, names = GLUE[row.name]
    features = {name: Value("string") for name in columns}
    label: Any = ClassLabel(names=list(names)) if names else Value("float32")
    number_of = {ours: number for number, ours in enumerate(names.values())}
    rows = []
    for number, one in enumerate(examples):
        mark = -1 if one.label is None else number_of[row.labels[one.label]] if names else one.label
        rows.append({**dict(zip(columns, (one.first, one.second))), "label": mark, "idx": number})
    return rows, Features({**features, "label": label, "idx": Value("int32")})


def as_hub(row: Benchmark, sample: Path, data_dir: Path, stated: bool) -> None:
    """Write the benchmark's parts as the hub has them; `stated`: with the class names in the file."""
    folder = {"squad1": "squad/plain_text", "squad2": "squad/squad_v2", "swag": "swag/regular"}.get(row.name)
    folder = folder or ("conll2003/conll2003" if row.name == "ner" else f"glue/{row.name}")
    parts = {"train": read_train(row, sample)}
    for kind, found in (("validation", read_dev(row, sample)), ("test", read_test(row, sample))):
        parts |= {f"{kind}_{suffix}" if suffix else kind: part for suffix, part in found.items()}
    for name, part in parts.items():
        rows, features = hub_rows(row, part.examples)
        path = data_dir / folder / f"{name}-00000-of-00001.parquet"
        if name == "test_diagnostic":
            path = data_dir / "glue" / "ax" / "test-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = Dataset.from_list(rows, features=features)
        if stated:
            data.to_parquet(path)
        else:
            pyarrow.parquet.write_table(data.data.table.replace_schema_metadata(None), path)


def content(examples: Any) -> list[Any]:
    """What counts of examples: all but their names."""
    found: list[Any] = []
    for one in examples:
        match one:
            case SpanExample():
                found.append((one.id, one.question, one.context, one.answers))
            case ChoiceExample():
                found.append((one.context, one.endings, one.label))
            case TagExample():
                found.append((one.words, one.tags))
            case _:
                found.append((one.first, one.second, one.label))
    return found


@pytest.mark.parametrize("stated", [True, False], ids=["names stated", "plain numbers"])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_hubs_rows_are_those_of_the_original_files(sample: Path, tmp_path: Path, name: str, stated: bool) -> None:
    row = BENCHMARKS[name]
    as_hub(row, sample, tmp_path, stated)
    assert content(read_train(row, tmp_path).examples) == content(read_train(row, sample).examples)
    for read in (read_dev, read_test):
        ours, theirs = read(row, tmp_path), read(row, sample)
        assert list(ours) == list(theirs)
        for suffix in ours:
            assert content(ours[suffix].examples) == content(theirs[suffix].examples)
    assert all(path.suffix == ".parquet" for _, path in files_of(row, tmp_path))


def write_rte(path: Path, rows: list[tuple[str, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts, labels = zip(*rows)
    columns = {"sentence1": texts, "sentence2": texts, "label": labels, "idx": range(len(rows))}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(
    "names",
    [["train-00000-of-00001"], ["train-00000-of-00002", "train-00001-of-00002"], ["train"], ["train/0000"]],
)
def test_a_split_is_found_however_it_was_downloaded(tmp_path: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        write_rte(tmp_path / "glue" / "rte" / f"{name}.parquet", [(f"text {number}", 0)])
    part = read_train(BENCHMARKS["rte"], tmp_path)
    assert [example.first for example in part.examples] == [f"text {number}" for number in range(len(names))]
    assert part.examples[0].label == 0, "entailment is the hub's 0"


def test_the_original_file_goes_before_the_hubs(tmp_path: Path) -> None:
    write_rte(tmp_path / "glue/rte/train-00000-of-00001.parquet", [("hub", 0)])
    (tmp_path / "glue/RTE").mkdir()
    (tmp_path / "glue/RTE/train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tglue\tb\tentailment\n")
    assert read_train(BENCHMARKS["rte"], tmp_path).examples[0].first == "glue"
    (tmp_path / "glue/RTE/train.tsv").unlink()
    assert read_train(BENCHMARKS["rte"], tmp_path).examples[0].first == "hub"
    with pytest.raises(UserError, match=r"glue/RTE/dev.tsv is missing; the benchmark rte needs it"):
        files_of(BENCHMARKS["rte"], tmp_path)


def test_a_file_that_states_another_order_is_believed(tmp_path: Path) -> None:
    names = ["neutral", "contradiction", "entailment"]
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=names)})
    rows = [{"premise": name, "hypothesis": "b", "label": number} for number, name in enumerate(names)]
    (tmp_path / "glue/mnli").mkdir(parents=True)
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "glue/mnli/train.parquet")
    row = BENCHMARKS["mnli"]
    assert [row.labels[one.label] for one in read_train(row, tmp_path).examples] == names


def test_faults_of_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "glue/rte/train-00000-of-00001.parquet"
    row = BENCHMARKS["rte"]
    write_rte(path, [("a", 0), ("b", 7)])
    with pytest.raises(UserError, match=r"row 2: unknown label '7'; expected entailment, not_entailment; labels found"):
        read_train(row, tmp_path)
    write_rte(path, [("a", 0), ("b", -1)])
    with pytest.raises(UserError, match=r"row 2: unknown label '-1'"):
        read_train(row, tmp_path)
    pyarrow.parquet.write_table(pyarrow.table({"premise": ["a"], "label": [0]}), path)
    with pytest.raises(UserError, match=r"no column 'sentence1'; expected .*, found 'premise', 'label'"):
        read_train(row, tmp_path)
    path.write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"parquet: not a Parquet file"):
        read_train(row, tmp_path)


def test_the_diagnostic_set_with_and_without_labels(tmp_path: Path) -> None:
    row = BENCHMARKS["mnli"].model_copy(update={"dev": {}})
    assert read_test(row, tmp_path) == {}, "it may lack"
    folder = tmp_path / "glue" / "diagnostic"
    folder.mkdir(parents=True)
    (folder / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\tIt ran.\tIt sat.\n")
    [example] = read_test(row, tmp_path)["diagnostic"].examples
    assert (example.id, example.first, example.second, example.label) == ("0", "It ran.", "It sat.", None)
    header = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    (folder / "diagnostic-full.tsv").write_text(header + "\t\tNegation\t\tNews\tIt ran.\tIt sat.\tneutral\n")
    [example] = read_test(row, tmp_path)["diagnostic"].examples
    assert (example.id, example.first, row.labels[example.label]) == ("0", "It ran.", "neutral")
    shutil.rmtree(folder)
    (tmp_path / "glue/ax").mkdir()
    columns = {"premise": ["It ran."], "hypothesis": ["It sat."], "label": [-1], "idx": [3]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "glue/ax/test-00000-of-00001.parquet")
    [example] = read_test(row, tmp_path)["diagnostic"].examples
    assert (example.id, example.second, example.label) == ("3", "It sat.", None)


def test_squad_of_the_hub_skips_and_counts_as_its_json_does(tmp_path: Path) -> None:
    context = "Paris is in France."
    answers = [("France", 12)] * 9 + [("France", 3)]
    rows = [
        {"id": str(n), "question": "Which?", "context": context, "answers": {"text": [text], "answer_start": [start]}}
        for n, (text, start) in enumerate(answers)
    ]
    folder = tmp_path / "squad" / "plain_text"
    folder.mkdir(parents=True)
    for name in ("train", "validation"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}-00000-of-00001.parquet")
    train, dev = read_train(BENCHMARKS["squad1"], tmp_path), read_dev(BENCHMARKS["squad1"], tmp_path)[""]
    assert (len(train.examples), train.num_skipped) == (9, 1)
    assert train.skipped == ("train-00000-of-00001.parquet: row 10: the answer is not in its context",)
    assert train.examples[0].answers == (Answer("France", 12),)
    assert len(dev.examples) == 10
    [remark] = dev.remarks
    assert "rows of which the answer is not in its context: 1 (validation-" in remark and "row 10" in remark


def test_metadata_without_class_names_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "glue/rte/train.parquet"
    write_rte(path, [("a", 1)])
    table = pyarrow.parquet.read_table(path)
    for metadata in ({}, {"info": {"features": {"label": {"dtype": "int64", "_type": "Value"}}}}):
        stated = table.replace_schema_metadata({b"huggingface": json.dumps(metadata).encode()})
        pyarrow.parquet.write_table(stated, path)
        assert read_train(BENCHMARKS["rte"], tmp_path).examples[0].label == 1
