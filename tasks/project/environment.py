"""Environment variables of all Cloze processes: no telemetry, state in the home directory, a tuned allocator.

The command line calls `configure` before it imports Prefect, MLflow or DVC. Variables that the user has set are kept.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import model
import tasks
from model.common.files import digest_of
from model.common.redaction import own_environment
from model.config.hardware import WAITING
from tasks.project import log_redaction
from tasks.project.project import HOME_VARIABLE, Project

_BEHAVIOR = {
    # no telemetry
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # Prefect: log to its API and pages, not to the terminal.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # the default of 20 s is too short for a first start
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",  # a run uses no blocks; `cloze up` registers them
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",  # the default is pickle
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_TASKS_REFRESH_CACHE": "true",  # there are two caches: DVC's and the jobs' result files
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # Prefect's minimum; without heartbeats, a killed run stays Running
    # Wait 2 + 4 + … + 128 s for a server that restarts.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    # MLflow: a dead server must not block a metric for minutes. No retries by its client: it would also repeat the
    # creation of runs and versions, while the forwarder knows what it has sent.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the URL may contain a password
    "TOKENIZERS_PARALLELISM": "false",  # its threads do not survive a fork
}

_HF_HOME = "~/.cache/huggingface"  # where `hf auth login` stores the token

# Keeps freed memory, so that logits over the vocabulary are not page-faulted again in every step. The C library reads
# these when a process starts, so they affect children only.
TUNED_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TOP_PAD_": str(256 * 2**20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def configure(project: Project) -> None:
    """Set the environment of this process and its children, and redact secrets in its logs."""
    log_redaction.install()
    logging.getLogger("dvc.progress").setLevel(logging.CRITICAL)  # its bars would break ours
    logging.raiseExceptions = False  # a record that cannot be written, such as to Prefect, is not worth more lines
    state = project.home / ".cloze"
    locations = {
        HOME_VARIABLE: str(project.home),
        "PREFECT_HOME": str(project.prefect_home),
        "MPLCONFIGDIR": str(state / "matplotlib"),
        "NUMBA_CACHE_DIR": str(numba_cache(project)),
        "TORCHINDUCTOR_CACHE_DIR": str(state / "inductor"),
        "HF_HOME": str(state / "huggingface"),
        "HF_TOKEN_PATH": str(Path(os.environ.get("HF_HOME", _HF_HOME)).expanduser() / "token"),
        "DVC_SITE_CACHE_DIR": str(state / "dvc"),
        "DVC_GLOBAL_CONFIG_DIR": str(state / "dvc"),
    }
    bin_dir = str(Path(sys.executable).parent)  # directory of `cloze`, which the commands in dvc.yaml call
    if bin_dir not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([bin_dir, os.environ.get("PATH", os.defpath)])
    for name, value in (_BEHAVIOR | WAITING | locations).items():
        os.environ.setdefault(name, value)


def numba_cache(project: Project) -> Path:
    """Cache directory of numba, one per state of the source files.

    Numba checks only the file of the compiled function, not those of the functions it calls, and would silently run old
    code after an update of another file. It reads the directory when it is imported, so nothing that the commands
    import at their start may import it.
    """
    files = sorted(file for package in (model, tasks) for file in Path(package.__file__ or "").parent.rglob("*.py"))
    state = digest_of([[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files])
    return project.home / ".cloze" / "numba" / state


def training_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Environment of a training process: that of this process, the tuned allocator, and `extra`."""
    return {**TUNED_ALLOCATOR, **own_environment(), **extra}
