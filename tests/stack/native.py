"""The services of ``docker-compose.yml`` as plain processes of this machine, with the commands and settings of that file.

Only what a machine without containers must have differently is replaced: names of services by 127.0.0.1, their ports by
free ones, the image's folders by this checkout's. A service that ends is started again where the file says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatch_airflow.processes import Process, end_all, end_with_parent, process, processes
from tests.checkout import PYTHONPATH
from tests.stack.compose import ROOT, Service, read_services
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
START_TIMEOUT_S = 240.0
_PR_SET_CHILD_SUBREAPER = 36


class StackError(AssertionError):
    """A service could not be started or did something that it should not have."""


@dataclass
class Running:
    """One service that was started; a replica has a name of its own."""

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
    home: Path = field(init=False)
    ports: dict[tuple[str, int], int] = field(init=False)
    running: dict[str, Running] = field(default_factory=dict, init=False)
    finished: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.logs = self.root / "logs"
        for folder in (self.home, self.logs):
            folder.mkdir(parents=True)
        self.ports = {(name, port): free_port() for name, ports in LISTENS.items() for port in ports}
        self.secrets = {
            name: secrets.token_urlsafe(24)
            for name in (
                "POSTGRES_PASSWORD", "AIRFLOW_ADMIN_PASSWORD", "AIRFLOW_API_SECRET_KEY", "AIRFLOW_JWT_SECRET",
                "OBJECT_STORE_KEY", "OBJECT_STORE_SECRET", "WEBHOOK_TOKEN",
            )
        }  # fmt: skip
        self.secrets["AIRFLOW_FERNET_KEY"] = urlsafe_b64encode(os.urandom(32)).decode()
        self.webhook = Webhook(free_port())
        self.mail = MailCatcher(self.ports["mail", 1025])
        self.postgres = Postgres(self.ports["postgres", 5432], self.secrets["POSTGRES_PASSWORD"])
        hook = {
            "conn_type": "http",
            "host": f"http://{HOST}:{self.webhook.port}/hook/{self.secrets['WEBHOOK_TOKEN']}",
        }
        variables = self.secrets | {
            "DISPATCH_AUDIT_PORT": str(self.ports["api-server", 8080]),
            "AIRFLOW_CONN_DISPATCH_AUDIT_WEBHOOK": json.dumps(hook),
            **self.further,
        }
        self.services = read_services(variables)
        self._before = {(one.pid, one.started) for one in processes()}

    @property
    def base(self) -> str:
        """Airflow's address."""
        return f"http://{HOST}:{self.ports['api-server', 8080]}"

    # start ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything in the order that the file asks for, each when what it waits for is healthy or done."""
        # Orphans of killed services come to this process, so that none is lost.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.webhook.start()
        waiting = dict(self.services)
        while waiting:
            ready = [one for one in waiting.values() if not set(one.after) & set(waiting)]
            assert ready, f"services wait for each other: {sorted(waiting)}"
            for service in ready:
                for other, condition in service.after.items():
                    self._wait_for(other, condition)
                self._start(service)
                del waiting[service.name]
        for name in ("api-server", "scheduler", "dag-processor", "triggerer", "spark-worker"):
            self._wait_for(name, "service_healthy")

    def _start(self, service: Service) -> None:
        if service.name == "postgres":
            self.postgres.start()
            self.until(self._postgres_is_healthy, "Postgres", 60)
            self.postgres.create_database()
        elif service.name == "object-store":
            self._launch(service, service.name, self._object_store())
        elif service.name == "mail":
            self.mail.start()
        elif service.name == "object-store-volume":
            self.finished.add(service.name)  # there is no volume
        else:
            assert service.is_ours, f"{service.name}: nothing stands for its image"
            for number in range(1, service.replicas + 1):
                name = service.name if service.replicas == 1 else f"{service.name}-{number}"
                for port in LISTENS.get(service.name, ()) if name != service.name else ():
                    self.ports[name, port] = free_port()
                self._launch(service, name, None)

    def _launch(self, service: Service, name: str, command: list[str] | None) -> None:
        words = command or [self.text(word, name) for word in self._arguments(service, name)]
        environment = self.environment(service, name)
        log = self.logs / f"{name}.log"
        self.running[name] = Running(
            name, service, words, environment, log, self._spawn(words, environment, log)
        )

    def _arguments(self, service: Service, name: str) -> Iterator[str]:
        before = ""
        for word in service.command:
            if before == "--host":
                yield HOST
            elif before == "--work-dir":
                yield str(self.root / "spark-work" / name)
            else:
                yield word
            before = word

    def _spawn(self, words: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        found = shutil.which(words[0], path=environment["PATH"])
        assert found, f"no command {words[0]}"
        with log.open("ab") as out:
            return subprocess.Popen(
                [found, *words[1:]],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one prctl call, nothing that could take a lock
            )

    def environment(self, service: Service, name: str) -> dict[str, str]:
        """What the file sets for a service, beside what the image brings: interpreter, Java, compiled code."""
        brought = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("AIRFLOW_", "DISPATCH_AUDIT_", "AWS_", "PYTEST"))
        }
        given = {
            key: HOST if key == "SPARK_LOCAL_HOSTNAME" else self.text(value, name)
            for key, value in service.environment.items()
        }
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        return {
            **brought,
            "PATH": paths,
            "PYTHONPATH": PYTHONPATH,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            **given,
        }

    def text(self, value: str, name: str) -> str:
        """A word of the file as this machine must have it, for the service of this name."""
        if value.startswith("{"):
            return json.dumps(self._connection(json.loads(value), name))
        own = {port: native for (owner, port), native in self.ports.items() if owner == name}
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
        return value.replace(HOME_IN_IMAGE, str(self.home)).replace(CODE_IN_IMAGE, str(ROOT))

    def _connection(self, found: Any, name: str) -> Any:
        if isinstance(found, dict):
            if found.get("host") in self.services and "port" in found:
                native = self.ports[found["host"], found["port"]]
                return found | {"host": HOST, "port": native}
            return {key: self._connection(value, name) for key, value in found.items()}
        return self.text(found, name) if isinstance(found, str) else found

    def _object_store(self) -> list[str]:
        return ["moto_server", "-H", HOST, "-p", str(self.ports["object-store", 7070])]

    # health ---------------------------------------------------------------------------------------------------------

    def _wait_for(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            self.until(lambda: self._is_done(name), f"{name} to end", START_TIMEOUT_S)
        elif name == "object-store":
            self.until(lambda: answers(self.ports[name, 7070]), name, START_TIMEOUT_S)
        elif name != "postgres":  # that one was waited for when it was started
            for one in self._replicas(name):
                self.until(lambda one=one: self.is_healthy(one), one.name, START_TIMEOUT_S)

    def is_healthy(self, one: Running) -> bool:
        """What the service's own health check says."""
        kind, *words = one.service.health
        assert kind == "CMD", f"{one.name}: {one.service.health}"
        done = subprocess.run(
            [self.text(word, one.name) for word in words],
            env=one.environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return done.returncode == 0

    def _is_done(self, name: str) -> bool:
        if name in self.finished:
            return True
        one = self.running[name]
        code = one.child.poll()
        if code is None:
            return False
        if code != 0:
            raise StackError(f"{name} ended with exit code {code}:\n{tail(one.log)}")
        self.finished.add(name)
        del self.running[name]
        return True

    def _postgres_is_healthy(self) -> bool:
        done = subprocess.run(
            self.services["postgres"].health[1].replace("--dbname airflow", "--dbname postgres"),
            shell=True,
            env=os.environ | self.postgres.environment(),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def _replicas(self, name: str) -> list[Running]:
        return [one for one in self.running.values() if one.service.name == name]

    # while it runs --------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Do what the container engine would: start again what has ended and should not have; reap orphans."""
        for one in self.running.values():
            if one.child.poll() is not None and one.service.is_restarted:
                one.starts += 1
                if one.starts > 5:
                    raise StackError(f"{one.name} does not stay up:\n{tail(one.log)}")
                one.child = self._spawn(one.command, one.environment, one.log)
        own = {one.child.pid for one in self.running.values()}
        for text in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
            child = process(int(text))
            if child is not None and child.state == "Z" and child.pid not in own:
                try:
                    os.waitpid(child.pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def until(self, true: Callable[[], Any], what: str, timeout_s: float, every_s: float = 0.5) -> Any:
        """Wait until a question is answered with yes; what it answers. Raises ``StackError`` after the time."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.tend()
            answer = true()
            if answer:
                return answer
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {one.name}\n{tail(one.log)}" for one in self.running.values())
                raise StackError(f"waited {timeout_s:.0f} s in vain for {what}\n{logs}")
            time.sleep(every_s)

    def kill(self, name: str) -> None:
        """``kill -9`` of a service's own process; its children live on where nothing ends them."""
        child = self.running[name].child
        child.send_signal(signal.SIGKILL)
        child.wait()

    # end ------------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End everything that was started, and everything that it started."""
        for one in self.running.values():  # none is started again
            one.child.terminate()
        stubborn = end_all(self._descendants, grace_s=15.0)
        self.postgres.end() if hasattr(self.postgres, "folder") else None
        for stand_in in (self.mail, self.webhook):
            stand_in.end()
        assert not stubborn, f"still running: {[(one.pid, one.command) for one in stubborn]}"

    def _descendants(self) -> list[Process]:
        """This process's children and theirs, but those that were there before and the database."""
        for one in self.running.values():
            one.child.poll()
        everyone = processes()
        mine, found = {os.getpid()}, []
        spared = {self.postgres.server.pid} if self.postgres.server else set()
        while True:
            new = [one for one in everyone if one.parent in mine and one.pid not in mine | spared]
            if not new:
                return [one for one in found if (one.pid, one.started) not in self._before]
            mine |= {one.pid for one in new}
            found += new


def answers(port: int) -> bool:
    """Whether something accepts connections there."""
    import socket

    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
