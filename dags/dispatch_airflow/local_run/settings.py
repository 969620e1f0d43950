"""Folders, port and configuration of the local Airflow."""

from __future__ import annotations

import base64
import os
import secrets
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dispatch_airflow.deadline import HOURS_VARIABLE
from dispatch_airflow.home import HOME_VARIABLE, Home
from dispatch_airflow.sources import SETTINGS_VARIABLE, SOURCE_VARIABLE, Source, namespace_of
from dispatch_core.errors import DispatchAuditError

ROOT: Final = Path(__file__).resolve().parents[3]
#: The folders of the checkout that hold the packages.
PACKAGE_FOLDERS: Final = (ROOT, ROOT / "dags", ROOT / "expectations")
#: Folder of Airflow's ``airflow_local_settings``.
CONFIG: Final = Path(__file__).resolve().parent / "config"
SAMPLE: Final = ROOT / "tests" / "data" / "recordings"
#: In the environment of every process of a local run, so that all can be found.
MARKER_VARIABLE: Final = "DISPATCH_AUDIT_LOCAL_RUN"
PORT_VARIABLE: Final = "DISPATCH_AUDIT_PORT"
USUAL_PORT: Final = 8080
#: The only user of Airflow's simple auth manager, which generates the password.
USER: Final = "admin"
DAG_ID: Final = "dispatch_audit"
_START_VARIABLE: Final = "DISPATCH_AUDIT_START_DATE"
_SCHEDULE_VARIABLES: Final = (
    "DISPATCH_AUDIT_SCHEDULE",
    "DISPATCH_AUDIT_MAINTENANCE_SCHEDULE",
    "DISPATCH_AUDIT_ALERTS_SCHEDULE",
    "DISPATCH_AUDIT_WATCH_SCHEDULE",
)
#: A year, the maximum.
_NEVER_LATE_HOURS: Final = "8784"
_HOST: Final = "127.0.0.1"


class LocalRunError(DispatchAuditError):
    """The local Airflow could not be started, reached or ended; the message says what to do."""


class Place:
    """Files of the local Airflow under one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.root = Path(home.root)
        #: ``AIRFLOW_HOME``.
        self.airflow = self.root / "airflow"
        #: State of the running services, as JSON; missing if none is running.
        self.state = self.root / "local-run.json"
        #: Lock of the command that works on this home.
        self.lock = self.root / "local-run.lock"
        #: Logs of Airflow's own processes.
        self.services = self.airflow / "services"
        #: Airflow's configuration file, with nothing but its secrets: the settings are in the environment.
        self.config = self.airflow / "airflow.cfg"
        #: Where Airflow keeps the generated password.
        self.passwords = self.airflow / "simple_auth_manager_passwords.json.generated"

    @classmethod
    def current(cls) -> Place:
        """Return the place in the home that the environment names, by default ``.dispatch-audit`` in the repository."""
        named = os.environ.get(HOME_VARIABLE)
        return cls(Home(str(Path(named).expanduser() if named else ROOT / ".dispatch-audit")))

    def results(self, folder: Path) -> Home:
        """Return the part of the home with the results of a source."""
        settings_file = os.environ.get(SETTINGS_VARIABLE)
        usual = Source("", _source_url(), settings_file=settings_file)
        return self.home.within(namespace_of(str(folder), settings_file, [usual]))

    def task_logs(self, run_id: str) -> Path:
        """Folder of the task logs of one DAG run."""
        return self.airflow / "logs" / f"dag_id={DAG_ID}" / f"run_id={run_id}"


def make_secrets(place: Place) -> None:
    """Write Airflow's configuration file with new secrets, unless there is one.

    Without it, each of Airflow's processes that starts first makes secrets of its own, and refuses those of the others.
    """
    if place.config.exists():
        return
    sections = {
        "core": ("fernet_key", base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()),
        "api": ("secret_key", secrets.token_hex(32)),
        "api_auth": ("jwt_secret", secrets.token_hex(64)),
    }
    place.config.touch(mode=0o600)
    place.config.write_text(
        "".join(f"[{name}]\n{key} = {value}\n" for name, (key, value) in sections.items())
    )


def choose_port(*, usual_first: bool) -> int:
    """Choose a free port on loopback: from the environment, else 8080 if ``usual_first`` and free, else any."""
    named = os.environ.get(PORT_VARIABLE)
    if named and not (named.isdecimal() and 0 < int(named) < 65536):
        raise LocalRunError(
            f"{PORT_VARIABLE}={named!r} is not a port; give a number from 1 to 65535, or unset it."
        )
    for port in [int(named)] if named else [USUAL_PORT, 0] if usual_first else [0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise LocalRunError(
        f"port {named} on {_HOST} is used by another program. Set {PORT_VARIABLE} to another port, "
        "or unset it to use any free port. Nothing was started."
    )


def address(port: int) -> str:
    """Return the base URL of the local Airflow."""
    return f"http://{_HOST}:{port}"


def _source_url() -> str:
    return os.environ.get(SOURCE_VARIABLE) or str(SAMPLE)


def environment(place: Place, port: int, marker: str, *, scheduled: bool) -> dict[str, str]:
    """Make the environment of all processes of the local Airflow.

    Settings of another Airflow (``AIRFLOW__…``) are not inherited. Connections (``AIRFLOW_CONN_…``) are, so that
    ``dispatch_audit_smtp`` and ``dispatch_audit_webhook`` can be used. What is not set is Airflow's default, such as SQLite
    and logs in ``AIRFLOW_HOME``, and the simple auth manager with one admin. ``scheduled``: Airflow stays; otherwise it is
    set up for one run with an empty database.
    """
    settings = {
        "CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "2",
        "API__HOST": _HOST,
        "API__PORT": str(port),
        "API__BASE_URL": address(port),
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5" if scheduled else "0.2",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # Tasks wait for the API server's answers; its first ones are slow on a busy machine.
        "WORKERS__EXECUTION_API_TIMEOUT": "60",
        "LOGGING__COLORED_CONSOLE_LOG": "False",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    if not scheduled:
        # The API server starts while the database is made, and no DAG file changes during the run.
        settings |= {
            "DATABASE__CHECK_MIGRATIONS": "False",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        }
    others = ("AIRFLOW_HOME", "AIRFLOW_CONFIG")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW__") and k not in others}
    paths = [*map(str, (*PACKAGE_FOLDERS, CONFIG)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **inherited,
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        "AIRFLOW_HOME": str(place.airflow),
        HOME_VARIABLE: str(place.root),
        SOURCE_VARIABLE: _source_url(),
        # The sample is of a day long ago: a scheduled run of yesterday would find no logs, and be the first thing to see.
        _START_VARIABLE: os.environ.get(_START_VARIABLE) or f"{datetime.now(UTC):%Y-%m-%d}",
        **{name: os.environ.get(name, "") if scheduled else "none" for name in _SCHEDULE_VARIABLES},
        # When the DAG is switched on, its first run may be late at once. On SQLite, Airflow 3.3's scheduler may fail if a
        # deadline has passed already when its run is created.
        HOURS_VARIABLE: os.environ.get(HOURS_VARIABLE) or _NEVER_LATE_HOURS,
        MARKER_VARIABLE: marker,
        "PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(paths))),
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "SPARK_LOCAL_IP": _HOST,
        "PYSPARK_PYTHON": sys.executable,
        "NO_COLOR": "1",
    }
