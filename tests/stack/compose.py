"""The services of ``docker-compose.yml``: commands, environments, health checks, order of starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
OWN_IMAGE = re.compile(r"pulsar-dispatch-audit:")
_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>[A-Z_]+)(?:(?P<how>:[-?])(?P<rest>[^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """A service of the file, with its variables filled in."""

    name: str
    is_ours: bool
    command: tuple[str, ...]
    #: Names of the secret files that it may read.
    secrets: tuple[str, ...]
    environment: Mapping[str, str]
    health: tuple[str, ...]
    after: Mapping[str, str]
    is_restarted: bool
    replicas: int


def read_services(variables: Mapping[str, str], path: Path = COMPOSE) -> dict[str, Service]:
    """Return all services; a variable without a value and a default is an error, as for compose."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: _service(name, found, variables) for name, found in document["services"].items()}


def _service(name: str, found: Mapping[str, Any], variables: Mapping[str, str]) -> Service:
    def fill(text: str) -> str:
        return interpolate(text, variables)

    environment = {}
    for key, value in (found.get("environment") or {}).items():
        if value is not None:
            environment[key] = fill(str(value))
        elif key in variables:  # passed through
            environment[key] = variables[key]
    health = found.get("healthcheck") or {}
    return Service(
        name=name,
        is_ours=bool(OWN_IMAGE.match(found["image"])),
        command=tuple(
            fill(str(word)) for part in ("entrypoint", "command") for word in found.get(part) or ()
        ),
        secrets=tuple(found.get("secrets") or ()),
        environment=environment,
        health=tuple(fill(word) for word in health.get("test") or ()),
        after={other: how["condition"] for other, how in (found.get("depends_on") or {}).items()},
        is_restarted=found.get("restart") == "unless-stopped",
        replicas=found.get("deploy", {}).get("replicas", 1),
    )


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$$``, ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?message}``."""

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        given = variables.get(name)
        if given:
            return given
        if match["how"] == ":-":
            return match["rest"]
        raise KeyError(f"{name}: {match['rest'] or 'not set'}")

    return _VARIABLE.sub(value, text)
