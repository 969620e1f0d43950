"""The services of ``docker-compose.yml`` as plain processes of this machine, with the commands and settings of that file.

Replaced is only what a machine without containers needs: names of services by 127.0.0.1, ports by free ones, the image's
folders by those of this checkout. A service that ends is started again if the file says so.

In place of the file's shared volume the home is a prefix in the object store, set as ``docs/operate.md`` says. Each service
is a machine of its own. Its folder has its home directory, its temporary files, Airflow's own files and the secret files of
the service. Where this user may make mount namespaces, it cannot see the folders of the others.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatch_airflow.processes import Process, end_all, end_with_parent, process, processes
from tests.checkout import PYTHONPATH
from tests.stack import own_namespace
from tests.stack.compose import ROOT, Service, read_services
from tests.stack.object_store import Overloaded, program
from tests.stack.stand_ins import HOST, MailCatcher, Postgres, Webhook, free_port

#: Ports of the containers, as docker-compose.yml names them.
LISTENS = {
    "postgres": (5432,),
    "object-store": (7070,),
    "mail": (1025,),
    "api-server": (8080,),
    "spark-master": (7077, 8081),
    "spark-worker": (8081,),
}
HOME_IN_IMAGE, CODE_IN_IMAGE = "/var/lib/dispatch-audit", "/opt/dispatch-audit"
STORE_IN_IMAGE, SECRETS_IN_IMAGE = "/var/lib/object-store", "/run/secrets"
#: Makes the files of the file's ``secrets:``.
MAKE_SECRETS = ROOT / ".ci" / "image" / "secrets"
CONNECTIONS = "airflow_connections.json"
#: Bucket of the home; the file's own bucket has the recorded logs.
BUCKET = "lake"
HOME = f"s3://{BUCKET}/production"
#: Services that share a machine: one writes the file of passwords, the other reads it.
MACHINE_OF = {"airflow-init": "api-server"}
START_TIMEOUT_S = 240.0
_PR_SET_CHILD_SUBREAPER = 36


class StackError(AssertionError):
    """A service could not be started or failed."""


@dataclass
class Running:
    """A service that was started; a replica has a name of its own."""

    name: str
    service: Service
    command: list[str]
    environment: dict[str, str]
    log: Path
    child: subprocess.Popen[bytes]
    starts: int = 1


@dataclass
class Stack:
    """All services, from the first start to the last end."""

    root: Path
    further: Mapping[str, str]
    #: What all machines see, as they see the image: files that were put there before the start.
    given: Path = field(init=False)
    machines: Path = field(init=False)
    #: Why the machines see each other's folders; None if they do not.
    not_apart: str | None = field(init=False)
    ports: dict[tuple[str, int], int] = field(init=False)
    running: dict[str, Running] = field(default_factory=dict, init=False)
    finished: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.machines, self.given, self.logs = (self.root / name for name in ("machines", "given", "logs"))
        for folder in (self.machines, self.given, self.logs):
            folder.mkdir(parents=True)
        self.not_apart = own_namespace.why_not(self.root / "probe")
        self.ports = {(name, port): free_port() for name, ports in LISTENS.items() for port in ports}
        self.secret_files = self.root / "secrets"
        subprocess.run([str(MAKE_SECRETS), str(self.secret_files)], check=True)
        self.webhook = Webhook(free_port())
        self.mail = MailCatcher(self.ports["mail", 1025])
        self.postgres = Postgres(self.ports["postgres", 5432], self.secret("postgres_password"))
        #: The way to the home; the source of logs and the task logs are reached directly.
        self.door = Overloaded(self.ports["object-store", 7070])
        self._add_connections()
        self.secrets = secret_values(self.secret_files)
        variables = {
            "DISPATCH_AUDIT_PORT": str(self.ports["api-server", 8080]),
            "DISPATCH_AUDIT_HOME_CONNECTION": "dispatch_audit_home",
            **self.further,
        }
        self.services = read_services(variables)
        self._before = {(process.pid, process.started) for process in processes()}

    def secret(self, name: str) -> str:
        """Return what a secret file holds."""
        return (self.secret_files / name).read_text(encoding="utf-8")

    def _add_connections(self) -> None:
        """Add a webhook and the store of the home to the file of connections, as ``docs/operate.md`` says."""
        file = self.secret_files / CONNECTIONS
        connections = json.loads(file.read_text(encoding="utf-8"))
        hook = f"http://{HOST}:{self.webhook.port}/hook/{secrets.token_urlsafe(24)}"
        connections["dispatch_audit_webhook"] = {"conn_type": "http", "host": hook}
        source = connections["dispatch_audit_source"]
        connections["dispatch_audit_home"] = source | {
            "extra": {"endpoint_url": self.door.url, "region_name": "us-east-1"}
        }
        file.write_text(json.dumps(connections), encoding="utf-8")

    @property
    def store(self) -> dict[str, str]:
        """The variables by which the tests find the object store."""
        return {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.ports['object-store', 7070]}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.secret("object_store_key"),
            "AWS_SECRET_ACCESS_KEY": self.secret("object_store_secret"),
        }

    @property
    def stored(self) -> Path:
        """Folder of the object store's files; each folder in it is a bucket."""
        return self.machines / "object-store" / "data"

    @property
    def base(self) -> str:
        """URL of Airflow."""
        return f"http://{HOST}:{self.ports['api-server', 8080]}"

    # start ----------------------------------------------------------------------------------------------------------

    def start(self, only: Collection[str] = ()) -> None:
        """Start the services in the order of the file, each after the services it waits for are healthy or done.

        ``only``: services that are wanted, with those that they wait for; else all.
        """
        # Orphans of killed services become children of this process, which can end them.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.webhook.start()
        wanted = self._with_those_before(only or self.services)
        waiting = {name: service for name, service in self.services.items() if name in wanted}
        while waiting:
            ready = [service for service in waiting.values() if not set(service.after) & set(waiting)]
            assert ready, f"services wait for each other: {sorted(waiting)}"
            for service in ready:
                for other, condition in service.after.items():
                    self._wait_for(other, condition)
                self._start(service)
                del waiting[service.name]
        for name in ("api-server", "scheduler", "dag-processor", "triggerer", "spark-worker"):
            if name in wanted:
                self._wait_for(name, "service_healthy")

    def _with_those_before(self, names: Collection[str]) -> set[str]:
        before = {other for name in names for other in self.services[name].after} - set(names)
        return self._with_those_before({*names, *before}) if before else set(names)

    def _start(self, service: Service) -> None:
        if service.name == "postgres":
            self.postgres.start()
            self.until(self.postgres_is_healthy, "Postgres", 60)
            self.postgres.create_database()
        elif service.name == "object-store":
            (self.stored / BUCKET).mkdir(parents=True)
            self._launch(service, service.name)
        elif service.name == "mail":
            self.mail.start()
        elif service.name == "object-store-volume":
            self.finished.add(service.name)  # there is no volume
        else:
            assert service.is_ours, f"{service.name}: there is no stand-in for its image"
            for number in range(1, service.replicas + 1):
                name = service.name if service.replicas == 1 else f"{service.name}-{number}"
                for port in LISTENS.get(service.name, ()) if name != service.name else ():
                    self.ports[name, port] = free_port()
                self._launch(service, name)

    def _launch(self, service: Service, name: str) -> None:
        words = [self.text(word, name) for word in self._arguments(service, name)]
        environment = self.environment(service, name)
        for secret in service.secrets:
            self._give_secret(secret, self.secrets_of(name), name)
        log = self.logs / f"{name}.log"
        self.running[name] = Running(
            name, service, words, environment, log, self._spawn(name, words, environment, log)
        )

    def _arguments(self, service: Service, name: str) -> Iterator[str]:
        before = ""
        for word in service.command:
            if before == "--host":
                yield HOST
            elif before == "--work-dir":
                yield str(self.machine(name) / "spark-work")
            else:
                yield word
            before = word

    def machine(self, name: str) -> Path:
        """Return the folder of a service's machine."""
        folder = self.machines / MACHINE_OF.get(name, name)
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        return folder

    def secrets_of(self, name: str) -> Path:
        """Return the folder with the secret files of a service."""
        return self.machine(name) / "secrets"

    def _give_secret(self, secret: str, folder: Path, name: str) -> None:
        """Copy a secret file for a service, with the addresses of this machine."""
        folder.mkdir(exist_ok=True)
        (folder / secret).write_text(self.text(self.secret(secret), name), encoding="utf-8")

    def inside(self, name: str, words: list[str]) -> list[str]:
        """Return the command that runs ``words`` on the machine of a service."""
        if self.not_apart is not None:
            return words
        over = [(self._driver(), Path(sys.executable).parent / "spark-submit")] if name == "scheduler" else []
        return own_namespace.command_line(self.machine(name), words, keep=self._kept(), over=over)

    def _kept(self) -> list[Path]:
        java = os.environ.get("JAVA_HOME")
        named = [self.given, ROOT, Path(sys.prefix), Path(sys.base_prefix), *([Path(java)] if java else [])]
        return [path for path in named if path.is_dir()]

    def _driver(self) -> Path:
        """Write the script that stands for ``spark-submit`` in the scheduler: the drivers are a machine of their own."""
        import pyspark

        machine = self.machine("scheduler") / "driver"
        (machine / "tmp").mkdir(parents=True, exist_ok=True)
        self._give_secret("spark-defaults.conf", machine / "secrets", "scheduler")
        inside = self.machines / "driver"
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        variables = _private(inside) | {"SPARK_CONF_DIR": str(inside / "secrets")}
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), str(submit)]
        words = own_namespace.command_line(machine, command, inside="driver", keep=self._kept())
        script = self.given / "spark-submit"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        return script

    def _spawn(
        self, name: str, words: list[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        found = shutil.which(words[0], path=environment["PATH"])
        assert found, f"no command {words[0]}"
        with log.open("ab") as out:
            return subprocess.Popen(
                self.inside(name, [found, *words[1:]]),
                cwd=self.machine(name),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one prctl call, nothing that could take a lock
            )

    def environment(self, service: Service, name: str) -> dict[str, str]:
        """Return the variables of the file for a service, and those that the image has: interpreter, Java, compiled code."""
        brought = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("AIRFLOW_", "DISPATCH_AUDIT_", "AWS_", "PYTEST"))
        }
        given = {
            key: HOST if key == "SPARK_LOCAL_HOSTNAME" else self.text(value, name)
            for key, value in {**service.environment, **self._home(service)}.items()
        }
        if service.name == "object-store":
            given["VGW_QUIET"] = "true"
        programs = (str(Path(file).parent) for file in (sys.executable, program()))
        paths = os.pathsep.join([*programs, os.environ.get("PATH", os.defpath)])
        return {
            **brought,
            "PATH": paths,
            "PYTHONPATH": PYTHONPATH,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            **_private(self.machine(name)),
            **given,
        }

    def _home(self, service: Service) -> dict[str, str]:
        """Return what replaces the shared volume in a service of Airflow, as ``docs/operate.md`` says."""
        if "DISPATCH_AUDIT_HOME" not in service.environment:
            return {}
        return {
            "DISPATCH_AUDIT_HOME": HOME,
            "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
            "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"s3://{BUCKET}/task-logs",
            "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": "dispatch_audit_source",
        }

    def text(self, value: str, name: str) -> str:
        """Translate a word of the file for this machine, for the service called ``name``."""
        if value.startswith("{"):
            return json.dumps(self._connection(json.loads(value), name))
        own = {port: native for (owner, port), native in self.ports.items() if owner == name}
        if re.fullmatch(r":\d+", value):  # all addresses of a container
            return f"{HOST}:{own[int(value[1:])]}"
        if value.isdecimal():
            others = {port: native for (_owner, port), native in self.ports.items()}
            return str((others | own).get(int(value), value))

        def address(match: re.Match[str]) -> str:
            owner, port = match["host"], int(match["port"])
            if owner in self.services:
                return f"{HOST}:{self.ports[owner, port]}"
            return f"{HOST}:{own.get(port, port)}"

        names = "|".join(map(re.escape, (*self.services, HOST)))
        value = re.sub(rf"(?<![\w.-])(?P<host>{names}):(?P<port>\d+)", address, value)
        folders = {
            HOME_IN_IMAGE: self.machine(name),
            CODE_IN_IMAGE: ROOT,
            STORE_IN_IMAGE: self.stored,
            SECRETS_IN_IMAGE: self.secrets_of(name),
        }
        for in_image, folder in folders.items():
            value = value.replace(in_image, str(folder))
        return value

    def _connection(self, found: Any, name: str) -> Any:
        if isinstance(found, dict):
            if found.get("host") in self.services and "port" in found:
                native = self.ports[found["host"], found["port"]]
                return found | {"host": HOST, "port": native}
            return {key: self._connection(value, name) for key, value in found.items()}
        return self.text(found, name) if isinstance(found, str) else found

    # health ---------------------------------------------------------------------------------------------------------

    def _wait_for(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            self.until(lambda: self._is_done(name), f"{name} to end", START_TIMEOUT_S)
        elif name == "object-store":
            self.until(lambda: answers(self.ports[name, 7070]), name, START_TIMEOUT_S)
        elif name != "postgres":  # that one was waited for when it was started
            for replica in self._replicas(name):
                self.until(lambda replica=replica: self.is_healthy(replica), replica.name, START_TIMEOUT_S)

    def is_healthy(self, replica: Running) -> bool:
        """Run the service's own health check."""
        kind, *words = replica.service.health
        assert kind == "CMD", f"{replica.name}: {replica.service.health}"
        done = subprocess.run(
            self.inside(replica.name, [self.text(word, replica.name) for word in words]),
            cwd=self.machine(replica.name),
            env=replica.environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return done.returncode == 0

    def _is_done(self, name: str) -> bool:
        if name in self.finished:
            return True
        started = self.running[name]
        code = started.child.poll()
        if code is None:
            return False
        if code != 0:
            raise StackError(f"{name} ended with exit code {code}:\n{tail(started.log)}")
        self.finished.add(name)
        del self.running[name]
        return True

    def postgres_is_healthy(self) -> bool:
        """Run the database's own health check."""
        done = subprocess.run(
            self.services["postgres"].health[1].replace("--dbname airflow", "--dbname postgres"),
            shell=True,
            env=os.environ | self.postgres.environment(),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def _replicas(self, name: str) -> list[Running]:
        return [replica for replica in self.running.values() if replica.service.name == name]

    # while it runs --------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Restart services that ended, as the container engine would, and reap orphans."""
        for started in self.running.values():
            if started.child.poll() is not None and started.service.is_restarted:
                started.starts += 1
                if started.starts > 5:
                    raise StackError(f"{started.name} does not stay up:\n{tail(started.log)}")
                started.child = self._spawn(started.name, started.command, started.environment, started.log)
        own = {started.child.pid for started in self.running.values()}
        for text in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
            child = process(int(text))
            if child is not None and child.state == "Z" and child.pid not in own:
                try:
                    os.waitpid(child.pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def until(self, true: Callable[[], Any], what: str, timeout_s: float, every_s: float = 0.5) -> Any:
        """Wait until ``true()`` returns something true, and return that; raises ``StackError`` after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.tend()
            answer = true()
            if answer:
                return answer
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"--- {started.name}\n{tail(started.log)}" for started in self.running.values()
                )
                raise StackError(f"waited {timeout_s:.0f} s in vain for {what}\n{logs}")
            time.sleep(every_s)

    def kill(self, name: str) -> None:
        """Kill a service's own process with ``kill -9``; its children go on unless something ends them."""
        child = self.running[name].child
        child.send_signal(signal.SIGKILL)
        child.wait()

    # end ------------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End all started processes and their descendants."""
        for started in self.running.values():  # none is started again
            started.child.terminate()
        stubborn = end_all(self._descendants, grace_s=15.0)
        self.postgres.end() if hasattr(self.postgres, "folder") else None
        for stand_in in (self.mail, self.webhook, self.door):
            stand_in.end()
        assert not stubborn, f"still running: {[(left.pid, left.command) for left in stubborn]}"

    def _descendants(self) -> list[Process]:
        """Return the descendants of this process, except those from before the start and the database."""
        for started in self.running.values():
            started.child.poll()
        everyone = processes()
        ours, found = {os.getpid()}, []
        spared = {self.postgres.server.pid} if self.postgres.server else set()
        while True:
            new = [child for child in everyone if child.parent in ours and child.pid not in ours | spared]
            if not new:
                return [child for child in found if (child.pid, child.started) not in self._before]
            ours |= {child.pid for child in new}
            found += new


def secret_values(folder: Path) -> dict[str, str]:
    """Return the secrets in the files of a folder: all words of 32 characters and more, by file and number."""
    return {
        f"{file.name}[{number}]": word
        for file in sorted(folder.iterdir())
        for number, word in enumerate(re.findall(r"[\w-]{32,}=?", file.read_text(encoding="utf-8")))
    }


def _private(machine: Path) -> dict[str, str]:
    """Return the variables for what a process keeps on its machine."""
    return {"HOME": str(machine), "TMPDIR": str(machine / "tmp")}


def answers(port: int) -> bool:
    """Return True if something accepts connections on a port."""
    import socket

    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log file."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
