"""Commands that keep servers on this machine, and the deployments on them."""

from __future__ import annotations

import sys

import click

from flows.cli.context import EXIT_FAILED, project_here
from model.common.errors import UserError
from tasks.params.servers import POOL


@click.command()
@click.option("--host", default="127.0.0.1", help="Where to listen; beyond this machine only with passwords.")
@click.option("--prefect-port", default=4200, help="Prefect's page and API.")
@click.option("--mlflow-port", default=5000, help="MLflow's page and API.")
@click.option("--database", default="", envvar="CLOZE_DATABASE", help="postgresql://… for both; else SQLite.")
@click.option("--artifacts", default="", help="s3://… for MLflow's artifacts, passed on by its server.")
@click.option("--pool", default=POOL, help="The work pool whose runs this machine takes.")
@click.option("--limit", default=4, help="Runs that the worker starts side by side.")
@click.option("--cron", help="When to retrain, like '0 3 * * 0'; 'never' for on demand only.")
def up(
    host: str,
    prefect_port: int,
    mlflow_port: int,
    database: str,
    artifacts: str,
    pool: str,
    limit: int,
    cron: str | None,
) -> None:
    """Start Prefect, MLflow and a worker on this machine, with the deployments; what is up is left alone."""
    from flows.cli.servers import up as start
    from tasks.params.servers import ServiceSettings

    values = {"host": host, "prefect_port": prefect_port, "mlflow_port": mlflow_port, "database": database}
    values |= {"artifacts": artifacts, "pool": pool, "limit": limit}
    start(project_here(), ServiceSettings.parse(values, "cloze up"), cron)


@click.command()
def down() -> None:
    """End what `cloze up` has started; runs save their state first."""
    from flows.cli.servers import down as end

    end(project_here())


@click.command()
def status() -> None:
    """What of `cloze up` runs and answers, and which runs are under way."""
    from flows.cli.servers import status as show

    sys.exit(0 if show(project_here()) else EXIT_FAILED)


@click.command()
@click.option("--pool", required=True, help="The work pool; it must be there.")
@click.option("--overlay", type=click.Choice(["process", "docker", "kubernetes"]), default="process")
@click.option("--image", default="", help="The image of docker and kubernetes.")
@click.option("--cron", help="When to retrain; 'never' for on demand only.")
def deploy(pool: str, overlay: str, image: str, cron: str | None) -> None:
    """Make the deployments on the Prefect server that PREFECT_API_URL names."""
    import os

    project = project_here()
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("PREFECT_API_URL names no server; `cloze up` starts one and makes the deployments itself")
    from flows.deployments import deploy as make

    print(f"{make(project, pool, overlay=overlay, image=image, cron=cron)} deployments")


COMMANDS = (up, down, status, deploy)
