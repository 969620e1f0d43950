"""Configure the local Airflow's SQLite database: a savepoint locks the database for writing at once.

SQLite lets one connection write at a time, and others wait. But a connection that has read in a transaction and then
wants to write does not wait: if another one wrote meanwhile, it fails at once (``SQLITE_BUSY_SNAPSHOT``). Airflow 3.3
creates the runs of a backfill in savepoints that read first, so that a backfill from the UI beside a working scheduler
failed with *Database is locked* (503). Production uses PostgreSQL (``docker-compose.yml``).

Airflow finds this module by its name in ``PYTHONPATH`` (``dispatch_airflow.local_run.settings``) and imports ``__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

__all__ = ["create_metadata_engine"]

#: Time that a writer waits for another one, in seconds; Python's default is 5.
_PATIENCE_S = 30.0


def create_metadata_engine(
    sql_alchemy_conn: str, *, engine_args: dict[str, Any], connect_args: dict[str, Any]
) -> Engine:
    """Make the engine as Airflow does, but on SQLite with savepoints that lock for writing, and longer waits."""
    if not sql_alchemy_conn.startswith("sqlite"):
        return create_engine(sql_alchemy_conn, connect_args=connect_args, **engine_args, future=True)
    patient = {"timeout": _PATIENCE_S, **connect_args}
    engine = create_engine(sql_alchemy_conn, connect_args=patient, **engine_args, future=True)
    event.listen(engine, "savepoint", _begin_as_writer)
    return engine


def _begin_as_writer(connection: Connection, _name: str) -> None:
    if not connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
        connection.exec_driver_sql("BEGIN IMMEDIATE")
