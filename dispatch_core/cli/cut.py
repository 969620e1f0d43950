"""``dispatch-audit cut``: spread recordings over several intervals, one file for each."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from pathlib import Path
from typing import Final

from dispatch_core.cli import CLEAN
from dispatch_core.cli.recordings import (
    add_path_arguments,
    code_of_copy,
    moment,
    one_by_one,
    progress,
    sources_at,
)
from dispatch_core.cli.selection import REFUSED_BY_COPIES, add_refused_arguments
from dispatch_core.recording.cut import Cut, CutError, cut_recording
from dispatch_core.recording.rewrite import target
from dispatch_core.recording.writer import FORMATS
from dispatch_core.times import micros

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cut``."""
    add_path_arguments(parser)
    add_refused_arguments(parser, REFUSED_BY_COPIES)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="write DIR/<parent>/<folder>/ per recording"
    )
    parser.add_argument(
        "--intervals", type=int, default=4, metavar="N", help="number of intervals (default %(default)s)"
    )
    parser.add_argument(
        "--interval-length",
        type=_length,
        default=timedelta(days=1),
        metavar="LENGTH",
        help="length of each interval, such as 1d, 6h, 30m or 10s (default 1d)",
    )
    parser.add_argument(
        "--start",
        type=moment,
        default="2026-11-01",
        metavar="ISO",
        help="start of the first interval, UTC (default %(default)s)",
    )
    parser.add_argument(
        "--at",
        type=int,
        action="append",
        default=[],
        metavar="T_US",
        help="begin the next interval at this t_us of the recording; give one for each interval but the first (default: "
        "intervals of equal length)",
    )
    parser.add_argument(
        "--segments-per-interval",
        type=int,
        default=1,
        metavar="S",
        help="files of each kind per interval (default %(default)s)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="jsonl.gz", help="format to write (default %(default)s)"
    )
    parser.add_argument(
        "--late",
        type=int,
        action="append",
        default=[],
        metavar="SEGMENT",
        help="write this segment (from 1) below --late-out instead; may be given again",
    )
    parser.add_argument("--late-out", type=Path, metavar="DIR", help="folder of the late segments")


def run(options: argparse.Namespace) -> int:
    """Cut all recordings; returns 0, or 2 if lines of one could not be read (the others were written)."""
    if bool(options.late) != (options.late_out is not None):
        raise CutError("--late and --late-out go together; nothing was written")
    length_us = options.interval_length // timedelta(microseconds=1)
    cut = Cut(
        micros(options.start), length_us, options.intervals, options.segments_per_interval, tuple(options.at)
    )
    code = CLEAN
    for source in one_by_one(sources_at(options.paths, follow_links=options.follow_links)):
        folders = {
            segment: target(source, options.late_out if segment in options.late else options.out)
            for segment in range(1, cut.segments + 1)
        }
        counts = cut_recording(source, folders, options.format, cut)
        progress("")
        code = max(code, code_of_copy(source, counts))
        print(f"{source.name}: {counts.accepted} lines in {cut.segments} segments below {options.out}")
    return code


def _length(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no length; write 1d, 6h, 30m or 10s")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
