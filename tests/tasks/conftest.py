"""What tests of several rooms of tasks share."""

from tests.tasks.registry.registered import finished_project as finished_project
