"""What the subcommands that read recordings share: options, progress, where a bad row stands."""

from __future__ import annotations

import argparse
import sys

from dispatch_core.recording.reader import Recording


def add_recording_arguments(parser: argparse.ArgumentParser, json_help: str) -> None:
    """``PATH...``, ``--json`` and ``--broker-version``."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a recording folder, a folder above, or a glob"
    )
    parser.add_argument("--json", action="store_true", help=f"JSON Lines on stdout{json_help}")
    parser.add_argument(
        "--broker-version", metavar="VERSION", help="use this release instead of the header's"
    )


def progress(text: str) -> None:
    """Show ``text`` in place of the last progress line, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def set_aside(recording: Recording) -> str | None:
    """What was quarantined of a recording and where the first of it stands; None for nothing."""
    if not recording.quarantine.num_rows:
        return None
    first = recording.quarantine.slice(0, 1).to_pylist()[0]
    line = "" if first["source_line"] is None else f":{first['source_line']}"
    return (
        f"{recording.name}: {recording.quarantine.num_rows} rows set aside, the first at "
        f"{first['source_file']}{line}: {first['reason']}"
    )
