"""Writing the sample world into data/."""

from __future__ import annotations

from model.common.errors import UserError
from model.common.files import digest_of_folder, read_json, write_json
from tasks.dvc.stage_snapshot import Clock
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.project.workspace import publish, run_lock, staging
from tasks.sample import SampleSettings, make_sample

MARK = "sample.json"  # below .cloze/: which data/ is the sample's own
SMALL = {"num_articles": 80, "num_books": 2, "num_train_rows": 64, "num_dev_rows": 48, "num_test_rows": 8}


def write_sample(project: Project, seed: int | None, small: bool) -> None:
    """Make data/ the sample world; data that Cloze did not make is never touched.

    Raises:
        UserError: data/ holds something else.
    """
    clock = Clock()
    with run_lock(project, "cloze sample"):
        mark = project.home / ".cloze" / MARK
        if project.data.exists() and any(project.data.iterdir()):
            made = read_json(mark)["digest"] if mark.exists() else ""
            if digest_of_folder(project.data) != made:
                raise UserError(
                    "data/ holds files that `cloze sample` did not make, or that were changed since; move it away first"
                )
        settings = SampleSettings(**SMALL) if small else SampleSettings()
        if seed is not None:
            settings = settings.model_copy(update={"seed": seed})
        with staging(project, "sample") as folder:
            sizes = make_sample(folder, settings)
            digest = digest_of_folder(folder)
            publish(folder, project.data)
        write_json(mark, {"digest": digest, "settings": settings.model_dump()})
    megabytes = sum(sizes.values()) / 1e6
    say(f"data/: the sample world, {len(sizes)} files, {megabytes:.1f} MB, in {clock.seconds:.1f} s")
