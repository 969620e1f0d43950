"""A savepoint of the local Airflow's database that reads before it writes is not refused."""

from __future__ import annotations

import importlib.util
import threading

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError

from dispatch_airflow.local_run.settings import CONFIG, Place, environment


def local_settings():
    spec = importlib.util.spec_from_file_location("local", CONFIG / "airflow_local_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wal(connection, _record):
    connection.execute("PRAGMA journal_mode=WAL")


def reads_then_writes(engine):
    """A savepoint that reads, another connection that writes, and a write in the savepoint."""
    event.listen(engine, "connect", wal)
    with engine.begin() as connection:
        connection.execute(text("create table runs (id integer)"))
    other = threading.Thread(target=write, args=(engine, 1))
    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(text("select count(*) from runs")).all()
            other.start()
            other.join(timeout=1)
            connection.execute(text("insert into runs values (2)"))
        connection.commit()
    other.join()
    with engine.connect() as connection:
        return [row[0] for row in connection.execute(text("select id from runs order by id"))]


def write(engine, number):
    with engine.begin() as other:
        other.execute(text("insert into runs values (:number)"), {"number": number})


def test_sqlite_refuses_it_as_airflow_sets_it_up(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'plain.db'}", connect_args={"check_same_thread": False})
    with pytest.raises(OperationalError, match="database is locked"):
        reads_then_writes(engine)


def test_the_local_airflow_lets_the_other_wait(tmp_path):
    engine = local_settings().create_metadata_engine(
        f"sqlite:///{tmp_path / 'patient.db'}", engine_args={}, connect_args={"check_same_thread": False}
    )
    assert reads_then_writes(engine) == [1, 2]


def test_airflow_finds_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
    assert str(CONFIG) in environment(Place.current(), 8080, "marker", scheduled=True)["PYTHONPATH"].split(
        ":"
    )
