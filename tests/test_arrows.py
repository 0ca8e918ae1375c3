"""Arrows run one way: flows → tasks → model; and nothing happens at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FORBIDDEN = {
    "model": {"prefect", "dvc", "mlflow", "boto3", "tasks", "flows", "cloze", "bench"},
    "tasks": {"flows", "cloze", "bench"},
    "flows": {"cloze", "bench"},
    "cloze": {"flows", "bench"},
}
# what the plain functions do not need, so that `cloze run` with nothing to do is quick: only these files import Prefect
PREFECT_IN_TASKS = {"tasks/prefect_tasks.py", "tasks/servers/request_guard.py"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_arrows_run_one_way(root: Path, package: str) -> None:
    files = sorted((root / package).rglob("*.py"))
    assert files
    broken = [
        f"{file.relative_to(root)}:{line} imports {name}"
        for file in files
        for line, name in imports(file)
        if name in FORBIDDEN[package]
    ]
    assert not broken


def test_few_files_of_tasks_import_prefect(root: Path) -> None:
    importing = {
        file.relative_to(root).as_posix()
        for file in (root / "tasks").rglob("*.py")
        if any(name == "prefect" for _, name in imports(file))
    }
    assert importing <= PREFECT_IN_TASKS


def test_a_run_with_nothing_to_do_imports_no_slow_packages(root: Path) -> None:
    modules = (
        "flows.cli.main, tasks.dvc.graph, tasks.finetune.plan, tasks.finetune.scheduler, tasks.pretrain.pretrain,"
        " tasks.tracking.tracking"
    )
    program = f"import sys, {modules}; print({{'torch', 'prefect', 'mlflow', 'numba'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_pipeline_itself_needs_no_torch(root: Path) -> None:
    """Jobs do, in processes of their own: the one that waits for them is quick to start and small."""
    program = "import sys, flows.pipeline, flows.worker_flows; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, check=True)


def test_training_uses_the_pinned_distribution_of_lightning(root: Path) -> None:
    """pyproject.toml pins `lightning`; `lightning_fabric` is another distribution, which no pin protects."""
    program = "import sys, model.pretrain.training, model.finetune.run; print(*{'lightning_fabric'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_nothing_happens_at_import(root: Path, tmp_path: Path) -> None:
    """Importing every module of tasks and model makes no file and sets no environment variable of ours or theirs."""
    names = [
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for package in ("model", "tasks", "flows")
        for file in sorted((root / package).rglob("*.py"))
        if file.name != "__main__.py"
    ]
    program = (
        "import os, sys, importlib\n"
        "before = dict(os.environ)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "changed = {k for k in os.environ if os.environ[k] != before.get(k)}\n"
        "changed = {k for k in changed if k.startswith(('CLOZE', 'PREFECT', 'MLFLOW', 'DVC', 'TOKENIZERS', 'OMP'))}\n"
        "assert not changed, changed\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PREFECT_HOME": str(home / "prefect")}
    environment["PYTHONPATH"] = str(root)  # these modules, whatever is installed
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
