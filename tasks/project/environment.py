"""The environment that every process of Cloze runs in: telemetry off, state at home, an allocator tuned for training.

`configure` is called by the command line before Prefect, MLflow or DVC are imported; nothing here happens at import.
What the user has set already is left as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import model
from model.common.files import digest_of
from model.config.hardware import WAITING
from tasks.project import log_redaction
from tasks.project.project import HOME_VARIABLE, Project

_TELEMETRY_OFF = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
}

_BEHAVIOUR = {
    # Prefect: what the terminal shows is ours to say; the API and its page get everything.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 s is too little on a first start
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",  # the default is pickle
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_TASKS_REFRESH_CACHE": "true",  # there are two caches: DVC's and the jobs' result files
    # A server that is started anew is waited for: 2 + 4 + … + 128 s.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    # MLflow: a dead server must not block a metric for minutes, nor run jobs of its own. Its client repeats what makes
    # a run or a version as well, though the first may have been done: the forwarder knows what it has sent.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the address may hold a password
    "TOKENIZERS_PARALLELISM": "false",  # its threads do not survive a fork
}

# Logits over a whole vocabulary are mapped and page-faulted anew in every step unless glibc keeps the memory
# (DESIGN, section 10). Read by the C library when a process starts, so children get it, not this process.
TUNED_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TOP_PAD_": str(256 * 2**20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def configure(project: Project) -> None:
    """Set the environment of this process and its children, keeping what the user set; secrets stay out of its logs."""
    log_redaction.install()
    matplotlib = project.home / ".cloze" / "matplotlib"
    placed = {
        HOME_VARIABLE: str(project.home),
        "PREFECT_HOME": str(project.prefect_home),
        "MPLCONFIGDIR": str(matplotlib),
        "NUMBA_CACHE_DIR": str(numba_cache(project)),
        "TORCHINDUCTOR_CACHE_DIR": str(project.home / ".cloze" / "inductor"),
        "HF_HOME": str(project.home / ".cloze" / "huggingface"),
        "DVC_SITE_CACHE_DIR": str(project.home / ".cloze" / "dvc"),
        "DVC_GLOBAL_CONFIG_DIR": str(project.home / ".cloze" / "dvc"),
    }
    here = str(Path(sys.executable).parent)  # where `cloze` lies, which dvc.yaml's commands name
    if here not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    for name, value in (_TELEMETRY_OFF | _BEHAVIOUR | WAITING | placed).items():
        os.environ.setdefault(name, value)


def numba_cache(project: Project) -> Path:
    """Where numba keeps what it compiles: a folder for each state of the sources.

    Numba looks at the file of a function alone, not at those of the functions that it has compiled into it: after an
    update of one of several files it would run the old code without a word.
    """
    files = sorted(Path(model.__file__).parent.rglob("*.py"))
    state = digest_of([[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files])
    return project.home / ".cloze" / "numba" / state


def training_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment for a training process: this one's, the tuned allocator, and `extra`."""
    return {**TUNED_ALLOCATOR, **os.environ, **extra}
