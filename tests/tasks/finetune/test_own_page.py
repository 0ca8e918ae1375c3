"""Every example of the page on own tasks is read and trained on."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from model.benchmarks.custom_task import CustomTask, load_custom
from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import BENCHMARKS
from model.common.files import write_json
from model.common.state_files import read_state
from model.config.finetuning import FinetuneRecipe
from model.finetune.job import Job, read_work
from model.finetune.run import run_job
from tasks.params.fetch import FetchSettings
from tests.tasks.finetune.tiny import MACHINE

pytestmark = pytest.mark.usefixtures("torch_as_it_was")
PAGE = "docs/add-a-benchmark.md"
TINY = {"max_length": 64, "max_query_length": 16, "doc_stride": 16, "batch_size": 8, "num_epochs": 1, "dropout": 0.0}


def examples_of_the_page(root: Path) -> dict[str, str]:
    """The files that the documentation shows, by their names below data/."""
    text = (root / PAGE).read_text(encoding="utf-8")
    return dict(re.findall(r"^`data/(tasks/[\w./-]+)`\n\n```\w+\n(.*?)```", text, re.DOTALL | re.MULTILINE))


def write_page(root: Path, data_dir: Path) -> list[str]:
    """Write the page's files; the names of the tasks."""
    files = examples_of_the_page(root)
    for name, content in files.items():
        (data_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / name).write_text(content, encoding="utf-8")
    for split in ("train", "validation", "test"):  # the data set of the hub
        path = data_dir / "tasks/films/plain_text" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({"text": ["good", "bad"], "label": ["pos", "neg"]}), path)
    return [name for name in files if name.endswith(".yaml")]


def test_every_example_of_the_page_trains(root: Path, tmp_path: Path, pretrained: Path) -> None:
    data_dir = tmp_path / "data"
    names = write_page(root, data_dir)
    heads = []
    for name in names:
        own = load_custom(name, data_dir)
        heads.append(own.row.head)
        train = read_train(own.row, data_dir)
        assert train.examples and not train.num_skipped and not train.remarks, name
        recipe = FinetuneRecipe.parse({**own.row.paper, **own.recipe, **TINY}, name)
        job = Job(
            digest="0123456789abcdef",
            encoder_name="tiny",
            encoder_dir=pretrained / "tiny",
            benchmark=own.row.name,
            own=own.row,
            data_dir=data_dir,
            recipe=recipe,
            seed=1,
            run_dir=tmp_path / own.row.name,
            machine=MACHINE,
        )
        write_json(job.run_dir / "JOB.json", job.model_dump(mode="json"))
        job = read_work(job.run_dir / "JOB.json")
        assert job.row == own.row, "the job needs no table and no YAML file"
        run_job(job)
        result = read_state(job.result_path)
        assert set(result["scores"]) >= set(own.row.metrics) and result["majority"].keys() == result["scores"].keys()
        assert result["num_dev_rows"] == len(read_dev(own.row, data_dir)[""].examples)
        assert "skipped_rows" not in result and "remarks" not in result
    assert set(heads) == set(HEAD_SPECS), "an example for each head"


def test_the_page_names_every_benchmark_metric_and_column(root: Path) -> None:
    text = (root / PAGE).read_text(encoding="utf-8")
    for name, row in BENCHMARKS.items():
        assert f"`{name}`" in text
        for form in row.forms:
            folder = form.train.rpartition("/")[0]
            assert folder in text, f"{name}: {folder}"
    for name, head in HEAD_SPECS.items():
        [line] = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        if name != "regression":
            assert all(f"`{column}`" in line for column in head.custom_columns if column != "id"), line
        assert all(metric in line for metric in head.all_metrics), line
    [sources] = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.startswith("fetch")]
    assert FetchSettings.parse(yaml.safe_load(sources)["fetch"], "docs").sources
    shown = {key for name in examples_of_the_page(root) if name.endswith(".yaml") for key in _keys(root, name)}
    told = {key for key in CustomTask.model_fields if f"`{key}" in text}
    assert set(CustomTask.model_fields) == shown | told, "every key is shown or told of"


def _keys(root: Path, name: str) -> set[str]:
    return set(yaml.safe_load(examples_of_the_page(root)[name]))
