"""Measure how far real brokers repeat themselves: the bound of what any prediction from one recording can reach.

``python -m tests.conformance.what_if_repeats FOLDER ...`` compares recordings of one script, release and variant with each
other and with those beside the repository, and writes ``bench/results/what-if-repeats.md``, which the accuracy page shows.
Each ``FOLDER`` holds one recording of each script: ``<script>-<variant>/``. A broker that has just started and one that has
been at work for minutes differ most, so a folder should not have its variants in the order of the others.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.conformance.what_if_accuracy import (
    RECORDINGS,
    REPEATS,
    Recorded,
    near,
    recorded,
    scripts,
    violates,
)

_VARIANTS: Final = ("ch", "range", "classic-ch", "classic-range")


def again(folders: Sequence[Path]) -> dict[tuple[str, str], list[Recorded]]:
    """All recordings of each script and set of rules, those beside the repository first."""
    found: dict[tuple[str, str], list[Recorded]] = {}
    for script, several in scripts().items():
        for recording in several:
            found[script, recording.rules] = [recording]
    for folder in folders:
        for script, variant in itertools.product(dict.fromkeys(script for script, _ in found), _VARIANTS):
            path = folder / f"{script}-{variant}"
            if not path.is_dir():
                continue
            recording = recorded(path, script, "")
            rules = f"{recording.log.header['broker_version']}/{variant}"
            if (script, rules) in found:
                found[script, rules].append(recording)
    return {key: some for key, some in found.items() if len(some) > 1}


def pairs_of(
    found: dict[tuple[str, str], list[Recorded]], script: str
) -> Iterator[tuple[Recorded, Recorded]]:
    """Each recording of a script as the prediction of each other one of the same rules."""
    for (name, _), several in found.items():
        if name == script:
            yield from itertools.permutations(several, 2)


def row(name: str, pairs: Sequence[tuple[Recorded, Recorded]]) -> str:
    """A line of the table."""
    violating = [pair for pair in pairs if violates(pair[1].measures)]
    alarms = [pair for pair in pairs if violates(pair[0].measures)]
    true = sum(violates(pair[0].measures) for pair in violating)
    waits = []
    for figure in ("p50", "p99"):
        both = [
            (
                getattr(predicted.measures.wait_ms, figure) or 0.0,
                getattr(known.measures.wait_ms, figure) or 0.0,
            )
            for predicted, known in pairs
        ]
        waits.append(f"{sum(near(*values) for values in both) / len(both):.1%}")
    recall, precision = (f"{true / len(some):.1%}" if some else "-" for some in (violating, alarms))
    return f"| {name} | {len(pairs)} | {waits[0]} | {waits[1]} | {len(violating)} | {recall} | {precision} |"


def differing(found: dict[tuple[str, str], list[Recorded]]) -> Iterator[str]:
    """Lines of the scripts and rules of which some recordings have order violations and some have not."""
    for (script, rules), several in found.items():
        count = sum(violates(recording.measures) for recording in several)
        if 0 < count < len(several):
            yield f"| `{script}` {rules} | {count} of {len(several)} |"


def table(found: dict[tuple[str, str], list[Recorded]]) -> str:
    """The text of the page."""
    names = dict.fromkeys(script for script, _ in found)
    by_script = [(f"`{script}`", list(pairs_of(found, script))) for script in names]
    everything = [pair for _, pairs in by_script for pair in pairs]
    head = "| | pairs | wait p50 near | wait p99 near | violating | found | true alarms |"
    lines = [
        head,
        "|---|---:|---:|---:|---:|---:|---:|",
        row("**all**", everything),
        *(row(name, pairs) for name, pairs in by_script),
    ]
    some = ["| script, rules | recordings with order violations |", "|---|---:|", *differing(found)]
    return "\n".join(lines) + "\n\n" + "\n".join(some)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; returns 1 where there are no recordings."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, help="recordings made again, one of each script and variant"
    )
    options = parser.parse_args(argv)
    if not RECORDINGS.is_dir():
        print(f"no recordings beside the repository ({RECORDINGS}); nothing was written", file=sys.stderr)
        return 1
    found = again(options.folders)
    REPEATS.write_text(
        _TEXT.format(count=sum(map(len, found.values())), table=table(found)), encoding="utf-8"
    )
    print(
        row(
            "all",
            [pair for script in dict.fromkeys(name for name, _ in found) for pair in pairs_of(found, script)],
        )
    )
    return 0


_TEXT: Final = """# How far brokers repeat themselves

Written by `python -m tests.conformance.what_if_repeats FOLDER ...` from recordings of the `designed-*` scripts that were
made again, on brokers of the same releases; do not edit. {count} recordings.

Each recording is taken as the prediction of each other one of the same script, release and variant: the same clients,
load and rules. So nothing that knows one recording only can be right more often, except by luck. *Near* is within 25 %
or 20 ms, *found* the share of the violating recordings of which the other one has order violations, too, *true alarms*
the share of the other way round.

{table}
"""


if __name__ == "__main__":
    sys.exit(main())
