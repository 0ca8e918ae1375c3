"""What tests of several rooms of tasks share."""

from tests.tasks.registry.registered import finished_project as finished_project
from tests.tasks.registry.registered import mlflow_tables as mlflow_tables
from tests.tasks.registry.registered import tracked_project as tracked_project
