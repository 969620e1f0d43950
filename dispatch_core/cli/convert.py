"""``dispatch-audit convert``: write recordings in another file format, line for line."""

from __future__ import annotations

import argparse
from pathlib import Path

from dispatch_core.cli import CLEAN
from dispatch_core.cli.recordings import add_path_arguments, code_of_copy, one_by_one, progress, sources_at
from dispatch_core.cli.selection import REFUSED_BY_COPIES, add_refused_arguments
from dispatch_core.recording.rewrite import check_vacant, convert_recording, target
from dispatch_core.recording.writer import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``convert``."""
    add_path_arguments(parser)
    add_refused_arguments(parser, REFUSED_BY_COPIES)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="write DIR/<parent>/<folder>/ per recording"
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="format to write")


def run(options: argparse.Namespace) -> int:
    """Convert all recordings; returns 0, or 2 if lines of one could not be read (the others were written).

    Nothing is written if the folder of a copy is occupied (``WouldOverwriteError``).
    """
    sources = sources_at(options.paths, follow_links=options.follow_links)
    folders = [target(source, options.out) for source in sources]
    check_vacant(sources, folders)
    code = CLEAN
    for source, folder in zip(one_by_one(sources), folders, strict=True):
        counts = convert_recording(source, folder, options.format)
        progress("")
        code = max(code, code_of_copy(source, counts))
        print(f"{source.name}: {counts.accepted} lines as {options.format} in {folder}")
    return code
