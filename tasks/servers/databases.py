"""One PostgreSQL database for both servers: a schema each, since both keep a table of the same name in theirs."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from model.common.errors import UserError

SCHEMAS = ("prefect", "mlflow")


def prefect_environment(database: str) -> dict[str, str]:
    """What Prefect's server reads: the address for asyncpg, and its schema."""
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": _with_scheme(database, "postgresql+asyncpg"),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": "prefect",
    }


def mlflow_uri(database: str) -> str:
    """What MLflow's server reads: the address for psycopg2, and its schema."""
    parts = urlsplit(_with_scheme(database, "postgresql"))
    query = [*parse_qsl(parts.query), ("options", "-csearch_path=mlflow")]
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def make_schemas(database: str) -> None:
    """Make both schemas where they are missing.

    Raises:
        UserError: psycopg2 is missing, or the database cannot be reached or refuses.
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
                # Prefect's indices ask for it by name, in whichever schema comes first
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
