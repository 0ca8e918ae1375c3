"""What every command has: the project that it works on, and the codes that it may exit with."""

from __future__ import annotations

import os

from tasks.project.project import Project

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_PAUSED = 75  # "try again later", what batch systems requeue on
EXIT_INTERRUPTED = 130


def project_here() -> Project:
    """The project around the current folder, with its environment set; the current folder becomes its root."""
    from tasks.project.environment import configure
    from tasks.servers.discovery import use_running

    project = Project.find()
    os.chdir(project.root)  # DVC resolves targets against the current folder
    configure(project)
    use_running(project)
    return project
