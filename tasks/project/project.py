"""The project directory, and the home directory with its state (servers, tracking, caches).

Cloze writes only below these two. They are the same directory, except in a run with other parameters: it works in a
workspace (a git worktree below the home) and shares the state in the home. So does an experiment of `dvc exp run` that
works in a temporary copy.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from model.common.errors import UserError

HOME_VARIABLE = "CLOZE_HOME"
MAX_PATH_BYTES = 400
"""SQLite opens files with up to 504 bytes in their path, and those of DVC's caches are 71 bytes below the home."""
_UNUSABLE = {
    r"[\x00-\x1f\x7f]": "line breaks and other control characters, because git, DVC and logs list paths by line",
    r"\?": "a question mark, because it ends the path in the URL of a database",
    r"\$": "a dollar sign, because DVC's caches replace $NAME in their path by a variable",
    r"[{}]": "braces, because DVC formats messages with the path of its cache",
    r"[\ud800-\udfff]": "bytes that are not UTF-8, because JSON and databases store text",
}
"""Pattern of characters in the path of a project that a dependency cannot handle: what and why."""


@dataclass(frozen=True)
class Project:
    """Paths of a project: `root` has dvc.yaml, params.yaml, data/ and build/; `home` has .cloze/."""

    root: Path
    home: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """Find the project that contains `start` (default: the current directory).

        Raises:
            UserError: neither `start` nor a directory above it has dvc.yaml and params.yaml; or a dependency cannot
                handle the project's path.
        """
        start = (start or Path.cwd()).resolve()
        for folder in (start, *start.parents):
            if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
                home = Path(os.environ.get(HOME_VARIABLE) or _home_of(folder))
                check_path(home)
                return cls(folder, home)
        raise UserError(
            f"{start}: no dvc.yaml and params.yaml in this directory or above; run cloze in a project"
            " (`cloze init NAME` creates one)"
        )

    @property
    def data(self) -> Path:
        """Raw input, pinned by data.dvc."""
        return self.root / "data"

    @property
    def build(self) -> Path:
        """Everything that is derived from data/."""
        return self.root / "build"

    @property
    def runs(self) -> Path:
        """Run directories, logs and records. Not tracked by DVC."""
        return self.build / "runs"

    @property
    def params_path(self) -> Path:
        return self.root / "params.yaml"

    @property
    def lock_path(self) -> Path:
        return self.root / ".cloze" / "run.lock"

    @property
    def prefect_home(self) -> Path:
        return self.home / ".cloze" / "prefect"

    @property
    def mlflow_home(self) -> Path:
        return self.home / ".cloze" / "mlflow"

    @property
    def workspaces(self) -> Path:
        """Worktrees of runs with other parameters."""
        return self.home / ".cloze" / "workspaces"

    @property
    def leaderboards(self) -> Path:
        """Records of all finished leaderboards, including those of workspaces, and their combined page."""
        return self.home / ".cloze" / "leaderboard"

    @property
    def sample_record(self) -> Path:
        """Record of the dataset that `cloze sample` generated: its hash, settings and files."""
        return self.home / ".cloze" / "sample.json"

    @property
    def tracking_uri(self) -> str:
        """MLFLOW_TRACKING_URI, or a SQLite file in the home directory."""
        default = f"sqlite:///{self.mlflow_home / 'mlflow.db'}"
        return os.environ.get("MLFLOW_TRACKING_URI") or default

    def relative(self, path: Path) -> str:
        """Return `path` relative to the project if it is inside, else unchanged."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


def check_path(folder: Path) -> None:
    """Refuse the directory of a project if a dependency would fail there, or use another place.

    Raises:
        UserError: the message names the path and the rule.
    """
    path = str(folder)
    rule = next((f"must not contain {what}" for pattern, what in _UNUSABLE.items() if re.search(pattern, path)), "")
    if not rule and (length := len(os.fsencode(path))) > MAX_PATH_BYTES:
        rule = f"must have at most {MAX_PATH_BYTES} bytes, not {length}, because SQLite opens no longer ones"
    if rule:
        raise UserError(f"{path!r}: the path of a project {rule}; use another directory")


def _home_of(root: Path) -> Path:
    """Return the project whose workspace or queued DVC experiment `root` is, or `root` itself.

    They are in HOME/.cloze/workspaces and HOME/.dvc/tmp/exps.
    """
    for folder in root.parents:
        if folder.name in (".cloze", ".dvc") and (folder.parent / "dvc.yaml").is_file():
            return folder.parent
    return root
