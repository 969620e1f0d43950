"""Read a ``broker.conf``, and read and write the settings files of ``--settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dispatch_core.broker import settings
from dispatch_core.errors import DispatchAuditError, ProfileError
from dispatch_core.importers.broker_conf_file import MOST_BYTES, Assignment, BrokerConfError, assignments

#: The first characters of a file that ``import-broker-conf`` wrote.
MARK: Final = "# Settings for dispatch-audit, made by import-broker-conf"

#: Characters of a path that a message about it shows.
_SHOWN: Final = 300


class SettingsFileError(DispatchAuditError):
    """A settings file that cannot be read, or must not be overwritten."""


def read_assignments(path: Path) -> list[Assignment]:
    """The settings of a file in the form of ``broker.conf``. Raises ``SettingsFileError`` with file and line."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SettingsFileError(f"{str(path)[:_SHOWN]}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # the name of no file: a null character, half a surrogate pair
        raise SettingsFileError(f"{ascii(str(path))[:_SHOWN]}: no name of a file: {error}") from error
    try:
        return assignments(data)
    except BrokerConfError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise SettingsFileError(f"{where}: {error}; nothing was taken from it") from error


def settings_of(paths: list[Path]) -> dict[str, settings.Value | str]:
    """The settings of ``--settings`` files. The last value of a name is used; an empty value means the default.

    Raises ``SettingsFileError`` for a name that is no setting of ``broker.conf`` or a value that no rule can use.
    """
    found: dict[str, settings.Value | str] = {}
    for path in paths:
        for assignment in read_assignments(path):
            if not assignment.value:
                found.pop(assignment.name, None)
                continue
            try:
                found |= settings.given([f"{assignment.name}={assignment.value}"])
            except ProfileError as error:
                raise SettingsFileError(
                    f"{path}:{assignment.line}: {error.what}: "
                    "correct it there; of a broker.conf, `dispatch-audit import-broker-conf` makes such a file"
                ) from error
    return found


def write_settings(
    path: Path, source: Path, broker_version: str, config: dict[str, settings.Value | str]
) -> None:
    """Write a settings file completely or not at all.

    Raises ``SettingsFileError`` if the path has a file that ``import-broker-conf`` did not write.
    """
    lines = [
        f"{MARK} from {source.name} for Pulsar {broker_version}.",
        "# Use it: dispatch-audit audit PATH --settings FILE; --set NAME=VALUE takes precedence.",
        *(f"{name}={_text(value)}" for name, value in sorted(config.items())),
    ]
    try:
        if path.exists() and not path.read_bytes()[: len(MARK)] == MARK.encode():
            raise SettingsFileError(
                f"{path} is there and was not written by import-broker-conf: nothing was written; choose another --out"
            )
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise SettingsFileError(f"{path}: cannot be written: {error.strerror or error}") from error


def _text(value: settings.Value | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
