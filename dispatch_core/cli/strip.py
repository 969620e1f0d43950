"""``dispatch-audit strip``: reduce dispatcher traces to their logs of level E, as recorded without a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE
from dispatch_core.cli.recordings import add_path_arguments, one_by_one, progress, set_aside, sources_at
from dispatch_core.cli.selection import REFUSED_BY_COPIES, add_refused_arguments
from dispatch_core.recording.reader import read_recording
from dispatch_core.recording.rewrite import strip_recording, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``strip``."""
    add_path_arguments(parser, "TRACE")
    add_refused_arguments(parser, REFUSED_BY_COPIES)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="write DIR/<parent>/<folder>/ per recording"
    )
    parser.add_argument(
        "--minimal",
        action="store_true",
        help="leave out the optional parts of level E too: active_notified, subscribe_rejected, flow.blocked, ack_sets",
    )


def run(options: argparse.Namespace) -> int:
    """Strip all recordings; returns 0, or 2 if lines of one could not be read (the others were written)."""
    sources = sources_at(options.paths, follow_links=options.follow_links)
    folders = [target(source, options.out) for source in sources]
    code = CLEAN
    for source, folder in zip(one_by_one(sources), folders, strict=True):
        recording = read_recording(source)
        lines = strip_recording(source, recording.logs, folder, minimal=options.minimal)
        progress("")
        problem = set_aside(recording)
        if problem is not None:
            print(
                f"{problem}; they are missing in the copy: mend the trace and strip it again", file=sys.stderr
            )
            code = COULD_NOT_JUDGE
        print(f"{source.name}: {lines} lines of level E in {folder}")
    return code
