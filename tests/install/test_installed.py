"""Install the wheel into new environments, and use it as a user does (``make test-install``; needs the package index).

One environment has the command line alone. The other has Airflow and Spark beside a user's repository that has packages
``dags`` and ``expectations`` of its own, and a DAG file of two lines.

``DISPATCH_AUDIT_CONSTRAINTS`` names another constraints file, to try other ends of the ranges in pyproject.toml.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.session import delta_jars
from tests.checkout import ROOT
from tests.platform.wheel import build_wheel

pytestmark = [pytest.mark.slow, pytest.mark.airflow, pytest.mark.spark]

CONSTRAINTS = Path(os.environ.get("DISPATCH_AUDIT_CONSTRAINTS") or ROOT / "constraints.txt").absolute()
SAMPLE = ROOT / "tests" / "data" / "recordings" / "4.2.4"
RECORDING = "designed-negative-acks-ch"
#: Of a message in the recording.
POSITION = "11:1"
DAY = "2026-11-21"
#: The logical date of a run that audits ``DAY``: without a schedule that is the last day that has ended.
NEXT_DAY = "2026-11-22"
DAGS = [
    "dispatch_audit",
    "dispatch_audit_alerts",
    "dispatch_audit_maintenance",
    "dispatch_audit_watch",
    "dispatch_hunt",
    "dispatch_what_if",
    "upgrade_risk",
]
#: Variables of this environment that would lead the new one back to this checkout.
OWN = ("AIRFLOW", "DISPATCH_AUDIT", "NUMBA", "PYSPARK", "PYTHON", "SPARK", "VIRTUAL_ENV")

#: Files of a user's repository: packages with the names of folders of this one, and a DAG that imports both.
USERS_FILES = {
    "dags/__init__.py": "",
    "dags/schedule.py": 'DAILY = "@daily"\n',
    "expectations/__init__.py": "",
    "expectations/limits.py": "MOST_ROWS = 10\n",
    "dags/own.py": (
        "from airflow.sdk import DAG\n"
        "from dags.schedule import DAILY\n"
        "from expectations.limits import MOST_ROWS\n"
        "with DAG('own', schedule=DAILY, description=str(MOST_ROWS)):\n"
        "    pass\n"
    ),
    "dags/dispatch.py": "from dispatch_airflow.dags import every_dag\nevery_dag()\n",
}


class Environment:
    """A virtual environment with the wheel and some of its extras."""

    def __init__(self, folder: Path, wheel: Path, extras: str, *more: str) -> None:
        self.folder = folder
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(OWN)},
            "NUMBA_CACHE_DIR": str(folder / "numba"),
        }
        requirement = f"{wheel}[{extras}]" if extras else str(wheel)
        python = getattr(sys, "_base_executable", sys.executable)
        if uv := shutil.which("uv"):
            self._must(uv, "venv", "--quiet", "--python", python, str(folder))
            install = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
        else:
            self._must(python, "-m", "venv", str(folder))
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        self._must(*install, "-c", str(CONSTRAINTS), requirement, *more)

    def run(self, command: str, *arguments: str, timeout_s: int = 3600) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in its folder."""
        return subprocess.run(
            [str(self.folder / "bin" / command), *arguments],
            cwd=self.folder,
            env=self.variables | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _must(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=3600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, wheel) -> Environment:
    return Environment(tmp_path_factory.mktemp("alone") / "venv", wheel, "")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, wheel) -> Environment:
    """The environment of a user's Airflow, with a database, the user's repository and the recordings as source."""
    made = Environment(tmp_path_factory.mktemp("airflow") / "venv", wheel, "airflow,spark")
    repository = made.folder / "repository"
    for name, text in USERS_FILES.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    made.variables |= {
        "AIRFLOW_HOME": str(made.folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(repository / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DISPATCH_AUDIT_HOME": str(made.folder / "home"),
        # With a schedule comes a deadline, and Airflow's `dags test` fails at the end of a DAG that has one.
        "DISPATCH_AUDIT_SCHEDULE": "none",
        "DISPATCH_AUDIT_SOURCE": str(SAMPLE / RECORDING),
        # Else Spark downloads them.
        "DISPATCH_AUDIT_SPARK_JARS": ",".join(delta_jars())
        if "DISPATCH_AUDIT_CONSTRAINTS" not in os.environ
        else "",
        "PYTHONPATH": str(repository),
    }
    done = made.run("airflow", "db", "migrate")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def as_json(printed: str) -> object:
    """Read the JSON that an Airflow command prints after lines of its log."""
    return json.loads(printed[printed.index("\n[" if "\n[" in printed else "[") :])


def test_the_command_line_brings_none_of_the_large_packages(alone):
    listed = alone.run(
        "python", "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    )
    names = set(listed.stdout.lower().split())
    assert "pulsar-dispatch-audit" in names
    assert not names & {
        "apache-airflow",
        "deltalake",
        "great-expectations",
        "pandas",
        "pyspark",
        "plotly-express",
    }
    assert len(names) < 25


def test_the_command_line_alone_judges_explains_and_draws(alone, tmp_path):
    judged = alone.run("dispatch-audit", "audit", "--json", str(SAMPLE / RECORDING))
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout.splitlines()[-1])["verdict"] == "PASS"
    broken = alone.run("dispatch-audit", "audit", str(SAMPLE / "designed-rolling-restart-classic-ch"))
    assert broken.returncode == 1, broken.stderr
    assert alone.run("dispatch-audit", "verify", str(SAMPLE / RECORDING)).returncode == 0
    explained = alone.run("dispatch-audit", "explain", str(SAMPLE / RECORDING), "--position", POSITION)
    assert explained.returncode == 0, explained.stderr
    assert POSITION in explained.stdout
    drawn = alone.run("dispatch-audit", "report", str(SAMPLE / RECORDING), "--out", str(tmp_path))
    assert drawn.returncode == 0, drawn.stderr
    assert list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["pipeline", "recordings"], "spark"),
        (
            ["record-messages", "--service-url", "pulsar://a:6650", "--topic", "t", "--out", "recordings"],
            "record",
        ),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_line(alone, arguments, extra):
    done = alone.run("dispatch-audit", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f'pip install "pulsar-dispatch-audit[{extra}]"')
    assert len(done.stderr.splitlines()) == 1


def test_airflow_finds_the_dags_beside_those_of_the_user(airflow):
    errors = airflow.run("airflow", "dags", "list-import-errors")
    assert "No data found" in errors.stdout, errors.stdout + errors.stderr
    listed = airflow.run("airflow", "dags", "list", "--local", "--output", "json")
    found = {row["dag_id"]: Path(row["fileloc"]).name for row in as_json(listed.stdout)}
    assert found == {"own": "own.py", **dict.fromkeys(DAGS, "dispatch.py")}


def test_airflow_finds_the_plugin_without_a_plugins_folder(airflow):
    done = airflow.run("airflow", "plugins", "--output", "json")
    [plugin] = [row for row in as_json(done.stdout) if row["name"] == "dispatch_audit"]
    assert "pulsar-dispatch-audit" in plugin["source"]


def test_the_dag_audits_the_sample(airflow):
    done = airflow.run("airflow", "dags", "test", "dispatch_audit", NEXT_DAY)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-20_000:]
    code = (
        "import json, sys; from datetime import datetime, UTC; from dispatch_airflow.home import Home;"
        "from dispatch_expectations.validate import read_verdicts;"
        f"rows = read_verdicts(Home.current().warehouse, datetime.fromisoformat('{DAY}').replace(tzinfo=UTC));"
        "print(json.dumps([row.verdict for row in rows if row.promise == 'all']))"
    )
    verdicts = airflow.run("python", "-c", code)
    assert verdicts.stdout.strip() == '["PASS"]', done.stdout[-20_000:] + verdicts.stderr
    assert list((airflow.folder / "home" / "reports").rglob("*.html"))
