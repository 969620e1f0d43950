"""``dispatch-audit import-broker-conf``: make a settings file from a ``broker.conf`` or ``standalone.conf``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from dispatch_core.audit.sentences.names import printable
from dispatch_core.broker import settings
from dispatch_core.broker.profiles import resolve
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE
from dispatch_core.cli.settings_file import SettingsFileError, read_assignments, write_settings
from dispatch_core.importers import broker_conf_file
from dispatch_core.importers.broker_conf_file import Judged

#: The release whose defaults are used if none is given.
ASSUMED_VERSION: Final = "4.2.4"
_REPLACED: Final = (
    "Namespace and topic policies and settings changed at run time (pulsar-admin brokers update-dynamic-config) may "
    "replace these; the file does not show them."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``import-broker-conf``."""
    parser.description = (
        "Read a broker.conf or standalone.conf, list the settings that matter for dispatch, and write them as a file for "
        "--settings. Values of all other settings are never shown. Exit codes: 0 all values were read, 2 one was not."
    )
    parser.add_argument("conf", type=Path, metavar="FILE", help="the broker's broker.conf or standalone.conf")
    parser.add_argument(
        "--broker-version",
        metavar="VERSION",
        help=f"the broker's release, whose defaults apply to settings not in the file (default {ASSUMED_VERSION})",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the settings file here")
    parser.add_argument(
        "--verbose", action="store_true", help="also list the names that do not matter for dispatch"
    )
    parser.add_argument(
        "--json", action="store_true", help="JSON Lines on stdout: one object per setting, then a summary"
    )


def run(options: argparse.Namespace) -> int:
    """Read, list and write the settings; returns 0, or 2 if a value cannot be read (then nothing is written)."""
    version = options.broker_version or ASSUMED_VERSION
    warnings = list(resolve(version).warnings)
    if options.broker_version is None:
        warnings.append(f"no --broker-version was given: {ASSUMED_VERSION} is assumed")
    found = read_assignments(options.conf)
    if not found:
        raise SettingsFileError(f"{options.conf}: no setting in it; nothing was written")
    judged = broker_conf_file.judge(found, version)
    config = broker_conf_file.config_of(judged)
    unreadable = [setting for setting in judged if setting.status == broker_conf_file.UNREADABLE]
    written = options.out is not None and not unreadable
    if written:
        write_settings(options.out, options.conf, version, config)
    for warning in warnings:
        print(f"dispatch-audit import-broker-conf: {warning}", file=sys.stderr)
    for setting in unreadable:
        print(
            f"{options.conf}:{setting.lines[-1]}: {setting.name}: {setting.reason}"
            f"{'; no settings file was written' if options.out else ''}",
            file=sys.stderr,
        )
    out = str(options.out) if written else None
    if options.json:
        _print_json(judged, config, version, warnings, out)
    else:
        print("\n".join(_for_people(judged, options, version, out)))
    return COULD_NOT_JUDGE if unreadable else CLEAN


def _print_json(
    judged: Sequence[Judged],
    config: dict[str, settings.Value | str],
    version: str,
    warnings: list[str],
    out: str | None,
) -> None:
    for setting in judged:
        row = asdict(setting)
        row["setting"] = row.pop("name")
        print(json.dumps(row, ensure_ascii=False))
    counts = Counter(setting.status for setting in judged)
    summary = {
        "summary": "import-broker-conf",
        "broker_version": version,
        "counts": {status: counts[status] for status in broker_conf_file.STATUSES},
        "config": config,
        "warnings": warnings,
        "out": out,
    }
    print(json.dumps(summary, ensure_ascii=False))


def _for_people(
    judged: Sequence[Judged], options: argparse.Namespace, version: str, out: str | None
) -> list[str]:
    of = {
        status: [setting for setting in judged if setting.status == status]
        for status in broker_conf_file.STATUSES
    }
    given = len([setting for setting in judged if setting.lines])
    lines = [f"{options.conf}: {given} settings, compared with the defaults of Pulsar {version}"]
    lines += ["", "Settings that matter for dispatch:"]
    lines += [
        f"  {setting.status:11}{_line(setting)}"
        for setting in [*of["unreadable"], *of["changed"], *of["default"]]
        if setting.lines
    ]
    if absent := [setting.name for setting in of["default"] if not setting.lines]:
        lines.append(f"  not in the file, so the default: {', '.join(absent)}")
    if of["what_if"]:
        lines += [
            "",
            "Timers, which only what-if simulates with:",
            *(f"  {_line(setting)}" for setting in of["what_if"]),
        ]
    if of["no_effect"]:
        lines += ["", f"Without effect in {version}:"]
        lines += [f"  {setting.name}  ({_where(setting)})" for setting in of["no_effect"]]
    if of["unknown"]:
        lines += ["", "Not known as settings of broker.conf (those of a plugin, or misspelt):"]
        lines += [
            f"  {printable(setting.name)}  ({_where(setting)}){_nearest(setting)}"
            for setting in of["unknown"]
        ]
    lines.append("")
    shown = ":" if options.verbose else " (--verbose lists them)"
    lines.append(f"{len(of['ignored'])} other settings do not matter for dispatch{shown}")
    if options.verbose:
        lines += [f"  {setting.name}  ({_where(setting)})" for setting in of["ignored"]]
    lines.append(_REPLACED)
    if out is not None:
        lines += [
            "",
            f"Written: {out}. Use it:",
            f"  dispatch-audit audit PATH --broker-version {version} --settings {out}",
        ]
    elif not of["unreadable"]:
        lines += ["", "Nothing was written: --out FILE writes these settings for --settings FILE."]
    return lines


def _line(setting: Judged) -> str:
    value = "?" if setting.value is None else _text(setting.value)
    reason = f"; {setting.reason}" if setting.reason and setting.status != broker_conf_file.UNREADABLE else ""
    return f"{setting.name} = {value}  (default {_text(setting.default)}; {_where(setting)}{reason})"


def _where(setting: Judged) -> str:
    if len(setting.lines) == 1:
        return f"line {setting.lines[0]}"
    shown = [str(line) for line in setting.lines[-4:-1]]
    return f"lines {', '.join(shown)} and {setting.lines[-1]}: the one in line {setting.lines[-1]} holds"


def _nearest(setting: Judged) -> str:
    if setting.reason:
        return f": {setting.reason}"
    return f": the nearest is {setting.nearest}" if setting.nearest else ""


def _text(value: settings.Value | str | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
