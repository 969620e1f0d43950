"""Is the simulation right where the answer is known? Recorded loads under their recorded rules, against what was recorded.

``python -m tests.conformance.what_if_identity`` writes ``docs/what-if-identity.md``. Two questions per recording: does the
first delivery of a position go to the consumer that it went to, and are the findings of the audit the same multiset of
(kind, key)? Recordings are taken as the user-level logs that they contain.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.run import simulate
from tests.dispatch_core.logs_without_trace import stripped
from tests.dispatch_core.what_if.outcomes import findings, first_consumers

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDINGS: Final = ROOT.parent / "shared" / "recordings"
PAGE: Final = ROOT / "docs" / "what-if-identity.md"
#: Share of positions whose first consumer has to be the recorded one.
BARS: Final = {"designed": 0.99, "quiet": 0.99, "racing": 0.95, "large": 0.95}
#: Classes whose findings have to be the same.
SAME_FINDINGS: Final = ("designed", "quiet")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a simulation under the recorded rules has in common with its recording."""

    recording: str
    entries: int
    same: int  # first delivered to the recorded consumer
    findings: int
    missing: int  # findings of the recording that the simulation has not
    extra: int  # and the other way round

    @property
    def kind(self) -> str:
        """The class of the recording."""
        name = self.recording.rpartition("/")[2]
        if name.startswith(("designed", "large")):
            return name.partition("-")[0]
        return name.rpartition("-")[2]

    @property
    def consumers_alike(self) -> bool:
        """Whether the bar of the class is reached."""
        return self.same >= BARS[self.kind] * self.entries

    @property
    def findings_alike(self) -> bool:
        """Whether both have the same findings."""
        return not self.missing and not self.extra

    @property
    def passes(self) -> bool:
        """Whether all is reached that is asked of the class."""
        return self.consumers_alike and (self.findings_alike or self.kind not in SAME_FINDINGS)


def folders(*, large: bool = False) -> list[Path]:
    """Every recording; those of heavy load only with ``large``."""
    return [
        source.folder
        for source in find_recordings([RECORDINGS])
        if large or not source.folder.name.startswith("large")
    ]


def identity_of(folder: Path) -> Identity:
    """Simulate a recording's load under its own rules and compare."""
    log = stripped(read_recording(find_recordings([str(folder)])[0]).logs[0])
    load = load_of(log)
    assert load.profile is not None, f"{log.recording}: no rules in its header"
    found = simulate(load, load.profile)
    recorded, again = first_consumers(log), first_consumers(found)
    before, after = findings(log), findings(found)
    return Identity(
        log.recording,
        len(recorded.keys() | again.keys()),
        sum(again.get(position) == consumer for position, consumer in recorded.items()),
        before.total(),
        (before - after).total(),
        (after - before).total(),
    )


_INTRODUCTION: Final = """# What-if under the recorded rules

Written by `python -m tests.conformance.what_if_identity` from the recordings beside the repository; do not edit.

Where the answer is known: each recorded load is simulated under its own rules, without a look at what was sent. Asked is
the same consumer for the first delivery of 99 % of the positions of `designed-*` and `*-quiet` recordings, of 95 % of
`*-racing` and `large-*` ones, and on the first two the same findings (kind and key, as often). *Reached* counts recordings
that have all that is asked of their class.
"""

_REASONS: Final = """## How the broker's time is told

Recorded traces say how long a broker usually takes: a read, a replay read and writing take longer with every entry, and a
replay read much longer before 4.1 (PIP-430: 0.2 ms, and 0.13 ms for each entry). These medians are one rule for all
recordings. Where an acknowledgement comes from a client that does not hold the entry by then, or comes twice though the
entry was sent once, other brokers are tried, and then up to 100 simulations with a moment, 1.3 or 6 ms long, in which the
broker was slower or faster: what explains more acknowledgements stays. Where that leaves some unexplained, a broker is tried
that has just started: from the first consumer on everything takes 8, 32 or 128 times as long, and half of that every 0.1,
0.4 or 1.6 s. It has to explain a hundredth of all acknowledgements more. The rules decide who is sent what in each of them.
So the duplicates of `designed-same-name-batches-*` of 4.0.0 are found: they need a replay read that is still under way when
the unblock timer cancels the waiting read (#23384), and their second acknowledgements tell that it was. A start is found for
`large-50000-ch`, whose broker was cold: its first 900 entries, published within half a second, went out in rounds of 100
that were 50 to 340 ms apart. And in `designed-rolling-restart-range` of 4.0.0 and of its preview a start 8 times as slow
explains every acknowledgement.

The search is bounded by work, counted from the load (entries, acknowledgements, clients that come and go), never from a
clock. A search takes a few seconds at most, whatever the size; of a log of a million entries one simulation is made.

The findings that are compared are those of the audit of deliveries. Stalls and balance are not among them. A stall is a wait
above a limit (10 s by default), and one finding may stand for many messages: a wait that ends 1 ms sooner or later
can make one of it or none, though every entry goes where it went. What is predicted of waits and shares is compared as
figures, in `what-if` itself and in [what-if-accuracy.md](what-if-accuracy.md).

## Why some miss

No log of level E says when a read was issued, when it came back, and when an executor ran. Where two events lie closer
than that, their order decides, and the simulation's order is one of several that were possible:

* `*-racing`, and the small queues (1 to 10 messages) of some `random-*-quiet`: a client takes, acknowledges and grants
  within 100 microseconds, in step with rounds of about the same length. One round more or less between two of them, and
  another entry waits when a consumer joins or leaves.
* `designed-rolling-restart-*`: a burst of permits and acknowledgements frees many hashes within 2 ms. Whether the first
  replay read comes before or after them decides which entries use up the permits; what a consumer still holds when it
  leaves differs then, and the findings with it. In the traces the read mostly comes right behind the burst (the executor
  shares its threads with the connections), but which of the pauses in it ends the burst no rule was found for: gaps of 100,
  200, 300 and 600 microseconds were tried, and reach no more recordings in all. In those of 4.2.4 no
  acknowledgement tells it either: all of them are explained both ways.
* `4.0.0-preview.1/random-0026-failover-modulo-quiet`: everything is requested again while the client has 46 entries. The
  read of the first 25 took 2.7 ms and sending them 3.4 ms; by then the client had acknowledged the other 21. The simulated
  broker takes 0.1 and 0.15 ms and sends these again. All acknowledgements are explained both ways.

Entries that are sent and not answered say something too: a recording mostly has fewer of them than its simulation. But the
broker that leaves fewest unanswered is often one that is too slow to send what a consumer held when it left. If one such
entry counts as much as an acknowledgement that is explained, 1 recording is gained and 9 are lost (4 and 18, if it is also
looked for where all acknowledgements are explained); if it decides between brokers that explain equally many, 2 are lost.
"""


def page(found: Sequence[Identity]) -> str:
    """The page as Markdown."""
    rows = [
        "| recordings | n | same first consumers | same findings | reached |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind in BARS:
        some = [one for one in found if one.kind == kind]
        if some:
            counts = (
                sum(one.consumers_alike for one in some),
                sum(one.findings_alike for one in some),
                sum(one.passes for one in some),
            )
            rows.append(f"| `{kind}` | {len(some)} | {counts[0]} | {counts[1]} | {counts[2]} |")
    missed = [one for one in found if not one.passes]
    table = ["| recording | same first consumer | findings | missing | extra |", "|---|---:|---:|---:|---:|"]
    table += [
        f"| `{one.recording}` | {one.same} of {one.entries} ({one.same / one.entries:.1%}) | {one.findings} "
        f"| {one.missing} | {one.extra} |"
        for one in missed
    ]
    parts = [_INTRODUCTION, "\n".join(rows), _REASONS, "## Recordings that miss", "\n".join(table)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def measured(some: Iterable[Path]) -> list[Identity]:
    """The identities of recordings, in the order given."""
    return [identity_of(folder) for folder in some]


def main() -> int:
    """Write the page; returns 1 where there are no recordings."""
    if not RECORDINGS.is_dir():
        print(f"no recordings beside the repository ({RECORDINGS}); nothing was written", file=sys.stderr)
        return 1
    found = measured(folders(large=True))
    PAGE.write_text(page(found), encoding="utf-8")
    print(f"{sum(one.passes for one in found)} of {len(found)} recordings reach what is asked of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
