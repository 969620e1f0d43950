"""Airflow's own hook for a local Airflow on SQLite: a savepoint takes the writer's place at once.

SQLite lets one connection write at a time, and others wait for it. But one that has read in a transaction and then
wants to write is not let wait: if another wrote meanwhile it is refused at once (``SQLITE_BUSY_SNAPSHOT``). Airflow 3.3
makes the runs of a backfill that way, each in a savepoint that reads first, so that a backfill from the UI beside a working
scheduler was answered with *Database is locked* (503). Production uses PostgreSQL (``docker-compose.yml``).

Found by its name in ``PYTHONPATH`` (``dispatch_airflow.local_run.settings``); Airflow takes what stands in ``__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

__all__ = ["create_metadata_engine"]

#: So long a writer waits for the one before it; Python's own default is 5.
_PATIENCE_S = 30.0


def create_metadata_engine(
    sql_alchemy_conn: str, *, engine_args: dict[str, Any], connect_args: dict[str, Any]
) -> Engine:
    """The engine that Airflow would make; on SQLite its savepoints begin as writers, and writers wait longer."""
    if not sql_alchemy_conn.startswith("sqlite"):
        return create_engine(sql_alchemy_conn, connect_args=connect_args, **engine_args, future=True)
    patient = {"timeout": _PATIENCE_S, **connect_args}
    engine = create_engine(sql_alchemy_conn, connect_args=patient, **engine_args, future=True)
    event.listen(engine, "savepoint", _begin_as_writer)
    return engine


def _begin_as_writer(connection: Connection, _name: str) -> None:
    if not connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
        connection.exec_driver_sql("BEGIN IMMEDIATE")
