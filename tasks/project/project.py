"""Where things lie: the project folder, and the home that keeps its state (servers, tracking, lock).

Everything that Cloze writes lies below one of these two. They are the same folder, but for a run with other parameters,
which works in a workspace (a git worktree below the home) and shares the home's state.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from model.common.errors import UserError

HOME_VARIABLE = "CLOZE_HOME"


@dataclass(frozen=True)
class Project:
    """`root` holds dvc.yaml, params.yaml, data/ and build/; `home` holds .cloze/ (state that outlives build/)."""

    root: Path
    home: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """The project around `start` (default: the current folder).

        Raises:
            UserError: there is no dvc.yaml with a params.yaml here or above.
        """
        start = (start or Path.cwd()).resolve()
        for folder in (start, *start.parents):
            if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
                home = os.environ.get(HOME_VARIABLE)
                return cls(folder, Path(home) if home else folder)
        raise UserError(f"{start}: no dvc.yaml and params.yaml here or above; run cloze in a clone of the project")

    @property
    def data(self) -> Path:
        """Raw input, pinned by data.dvc."""
        return self.root / "data"

    @property
    def build(self) -> Path:
        """Everything derived."""
        return self.root / "build"

    @property
    def runs(self) -> Path:
        """Who, when, where; live training; logs. Never an output of DVC."""
        return self.build / "runs"

    @property
    def params_path(self) -> Path:
        """The parameters of every stage."""
        return self.root / "params.yaml"

    @property
    def lock_path(self) -> Path:
        """Held while a run works in this folder."""
        return self.root / ".cloze" / "run.lock"

    @property
    def prefect_home(self) -> Path:
        """Prefect's database, logs and settings."""
        return self.home / ".cloze" / "prefect"

    @property
    def mlflow_home(self) -> Path:
        """MLflow's database and artifacts."""
        return self.home / ".cloze" / "mlflow"

    @property
    def workspaces(self) -> Path:
        """Worktrees of runs with other parameters."""
        return self.home / ".cloze" / "workspaces"

    @property
    def leaderboards(self) -> Path:
        """Records of all finished leaderboards, those of workspaces among them, and the page over them."""
        return self.home / ".cloze" / "leaderboard"

    @property
    def tracking_uri(self) -> str:
        """Where MLflow records: MLFLOW_TRACKING_URI, or a SQLite file in the home."""
        default = f"sqlite:///{self.mlflow_home / 'mlflow.db'}"
        return os.environ.get("MLFLOW_TRACKING_URI") or default

    def relative(self, path: Path) -> str:
        """`path` as people type it: relative to the project where it lies in it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
