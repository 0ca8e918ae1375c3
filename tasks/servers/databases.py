"""One PostgreSQL database for both servers, with a schema each, because both have a table of the same name."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from model.common.errors import UserError

SCHEMAS = ("prefect", "mlflow")


def prefect_environment(database: str) -> dict[str, str]:
    """Environment of the Prefect server: the asyncpg URL and the schema."""
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": _with_scheme(database, "postgresql+asyncpg"),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": "prefect",
    }


def mlflow_uri(database: str) -> str:
    """Backend store URI of the MLflow server: the psycopg2 URL with the schema."""
    parts = urlsplit(_with_scheme(database, "postgresql"))
    query = [*parse_qsl(parts.query), ("options", "-csearch_path=mlflow")]
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def make_schemas(database: str) -> None:
    """Create both schemas if they do not exist.

    Raises:
        UserError: psycopg2 is not installed, or the database cannot be reached or rejects the request.
    """
    try:
        import psycopg2
    except ImportError as error:
        raise UserError("--database: psycopg2 is missing; pip install -c constraints.txt -e '.[cluster]'") from error
    try:
        connection = psycopg2.connect(_with_scheme(database, "postgresql"), connect_timeout=10)
        try:
            with connection, connection.cursor() as cursor:
                for schema in SCHEMAS:
                    cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                # Prefect's indexes need it in the search path
                cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA prefect")
        finally:
            connection.close()
    except psycopg2.Error as error:
        raise UserError(f"--database: {_without_secrets(str(error), database)}") from None


def _with_scheme(database: str, scheme: str) -> str:
    return urlunsplit(urlsplit(database)._replace(scheme=scheme))


def _without_secrets(message: str, database: str) -> str:
    password = urlsplit(database).password
    line = " ".join(message.split())
    return line.replace(password, "***") if password else line
