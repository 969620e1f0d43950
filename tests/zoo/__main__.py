"""Play the schedules of the zoo on brokers: ``make zoo RELEASES='4.0.0 4.2.4'`` (docs/hunt.md).

``schedules FILE`` writes them for ``dispatchaudit.zoo.Zoo``, and ``compare FILE...`` reads its answers. A schedule is
reproduced if the broker breaks the promise that its rules break first, or none where they break none. Ends with 0 if all
are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from dispatch_core.cli.zoo import exhibits_in
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.ownership import ranges_of
from dispatch_core.hunt.zoo import KEPT, RELEASES, Exhibit

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "zoo"
_NAMES: Final = {
    s_.STORE: "store",
    s_.STORE_BATCH: "store",
    s_.JOIN: "join",
    s_.LEAVE: "leave",
    s_.FLOW: "flow",
    s_.ACK_FIRST: "ack_first",
    s_.ACK_LAST: "ack_last",
    s_.ACK_PART: "ack_part",
    s_.ACK_IN_SCAN: "ack_in_scan",
    s_.ACK_IN_ROUND: "ack_in_round",
    s_.NACK_FIRST: "nack_first",
    s_.NACK_ALL: "nack_all",
    s_.READ: "read",
    s_.REPLAY: "replay",
    s_.CURSOR: "cursor",
    s_.TIMER: "timer",
    s_.RETRY: "retry",
    s_.CLEAR: "clear",
    s_.ACK_UP_TO: "ack_up_to",
    s_.SKIP: "skip",
    s_.RESET: "reset",
    s_.JOIN_LOW: "join",
    s_.LIMIT: "limit",
    s_.HANG: "hang",
    s_.SLOW_SEND: "slow_send",
    s_.SLOW_CHECK: "slow_check",
}


def schedule_of(exhibit: Exhibit) -> dict[str, Any]:
    """Return a schedule as ``Zoo`` reads it."""
    return {
        "name": exhibit.name,
        "settings": dict(exhibit.settings),
        "subscription_type": exhibit.subscription_type,
        "allow_out_of_order": exhibit.allow_out_of_order,
        "steps": [_step(exhibit, step) for step in exhibit.steps],
    }


def _step(exhibit: Exhibit, step: int) -> dict[str, Any]:
    kind, detail = s_.kind_of(step), s_.detail_of(step)
    fields: dict[str, Any] = {"do": _NAMES[kind]}
    if kind in (s_.STORE, s_.STORE_BATCH):
        return fields | {"key": exhibit.keys[detail], "messages": s_.BATCH if kind == s_.STORE_BATCH else 1}
    if kind not in s_.WITHOUT_CONSUMER:
        fields["name"] = f"c{s_.name_of(step) + 1}"
    if kind == s_.LIMIT:
        return fields | {"limit": s_.LIMITS[detail]}
    if kind == s_.JOIN_LOW:
        return fields | {"permits": s_.PERMITS_LOW, "priority": 1}
    if kind != s_.JOIN:
        return fields
    fields["permits"] = s_.PERMITS[detail]
    ranges = ranges_of(exhibit.profile(RELEASES[-1]), s_.name_of(step))
    return fields if ranges is None else fields | {"ranges": [[start, end] for start, end in ranges]}


def promise_of(verdict: str) -> str:
    """Return the promise of a verdict, without its cause, which no client sees.

    >>> promise_of("stuck.draining_hash"), promise_of("kept")
    ('stuck', 'kept')
    """
    return verdict.partition(".")[0]


def compare(answers: list[dict[str, Any]], exhibits: list[Exhibit]) -> tuple[list[str], int]:
    """Return a line for each answer, with the counts behind them, and how many answers are not as expected."""
    by_name = {exhibit.name: exhibit for exhibit in exhibits}
    lines, counts = [], Counter[str]()
    for answer in answers:
        expected = by_name[answer["name"]].expected[answer["release"]]
        as_expected = answer["verdict"] == promise_of(expected)
        counts["reproduced" if as_expected else "other"] += 1
        counts["broken"] += as_expected and expected != KEPT
        outcome = "as expected" if as_expected else "NOT AS EXPECTED"
        tries = f", try {answer['tries']}" if answer.get("tries", 1) > 1 else ""
        lines.append(
            f"{answer['release']:8}{answer['name']:38}{answer['verdict']:20}{outcome} ({expected}){tries}"
        )
    lines.append(
        f"zoo: {counts['reproduced']} of {len(answers)} plays as the rules say, {counts['broken']} of them broke a promise"
    )
    return lines, counts["other"]


def main() -> int:
    """Write the schedules, or compare answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("what", choices=("schedules", "compare"))
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="the schedules' files (default: docs/zoo)"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="the exhibits to play (default: all)"
    )
    options = parser.parse_args()
    exhibits = exhibits_in(options.folder)
    if options.what == "schedules":
        schedules = [
            schedule_of(exhibit) for exhibit in exhibits if not options.only or exhibit.name in options.only
        ]
        options.files[0].write_text(json.dumps(schedules), encoding="utf-8")
        return 0
    texts = [line for file in options.files for line in file.read_text(encoding="utf-8").splitlines()]
    lines, others = compare([json.loads(text) for text in texts], exhibits)
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if others or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
