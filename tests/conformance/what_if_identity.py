"""Simulate recorded loads under their recorded rules and compare with what was recorded.

``python -m tests.conformance.what_if_identity`` writes ``bench/results/what-if-identity.md``. Two things are compared per
recording: the consumer of each position's first delivery, and the audit's findings as a multiset of (kind, key).
Recordings are read as logs without a trace.
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
PAGE: Final = ROOT / "bench" / "results" / "what-if-identity.md"
#: Share of positions whose first consumer has to be the recorded one.
BARS: Final = {"designed": 0.99, "quiet": 0.99, "racing": 0.95, "large": 0.95}
#: Classes whose findings have to be the same.
SAME_FINDINGS: Final = ("designed", "quiet")


@dataclass(frozen=True, slots=True)
class Identity:
    """Agreement of a simulation under the recorded rules with its recording."""

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
        """True if the bar of the class is reached."""
        return self.same >= BARS[self.kind] * self.entries

    @property
    def findings_alike(self) -> bool:
        """True if both have the same findings."""
        return not self.missing and not self.extra

    @property
    def passes(self) -> bool:
        """True if the recording reaches every bar of its class."""
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

Each recorded load is simulated under its own rules, without reading the recorded deliveries. The recording is then the
correct answer. A recording *reaches* the bar if

- the first delivery goes to the recorded consumer for 99 % of the positions (`designed-*` and `*-quiet`), or for 95 %
  of them (`*-racing` and `large-*`);
- `designed-*` and `*-quiet` recordings also have the same findings: the same kinds and keys, equally often.
"""

_REASONS: Final = """## How the broker's delays are estimated

The simulation starts from the median delays of the recorded traces. A read, a replay read and a write take longer with
every entry. Before 4.1 a replay read takes much longer (PIP-430: 0.2 ms, plus 0.13 ms per entry). All recordings use
the same medians.

An acknowledgement is *unexplained* if it comes from a client that does not hold the entry at that time, or if it comes
twice although the entry was sent once. If some are unexplained, the search tries in this order, and keeps what explains
more:

1. brokers with other delays;
2. up to 100 simulations with one moment, 1.3 or 6 ms long, in which the broker was slower or faster;
3. a broker that has just started: from the first consumer on, everything takes 8, 32 or 128 times as long, and the
   factor halves every 0.1, 0.4 or 1.6 s. This has to explain one more hundredth of all acknowledgements.

In all of them the rules decide who is sent what. Examples:

- `designed-same-name-batches-*` of 4.0.0: its duplicates need a replay read that is still in flight when the unblock
  timer cancels the waiting read (#23384). The second acknowledgements show that it was.
- `large-50000-ch`: its broker was cold. Its first 900 entries were published within half a second and sent in rounds of
  100 that were 50 to 340 ms apart.
- `designed-rolling-restart-range` of 4.0.0 and of its preview: a start that is 8 times as slow explains every
  acknowledgement.

The search is limited by the amount of work, which is counted from the load (entries, acknowledgements, joins and
leaves), never by a clock. It takes a few seconds at most. A log of a million entries is simulated once.

The compared findings are those of the audit of deliveries, without stalls and balance. A stall is a wait above a limit
(10 s by default), and one finding may stand for many messages: if a wait ends 1 ms earlier or later, the finding
appears or disappears although every entry goes to the same consumer. Predicted waits and shares are compared as
figures, in `what-if` itself and in [what-if-accuracy.md](what-if-accuracy.md).

## Why some recordings miss the bar

A log of level E does not say when a read was issued, when it returned, or when an executor ran. Where two events are
closer than that, their order decides the outcome, and several orders were possible:

* `*-racing`, and the small queues (1 to 10 messages) of some `random-*-quiet`: a client receives, acknowledges and
  grants permits within 100 microseconds, in step with rounds of about the same length. With one round more or less
  between two of these steps, another entry waits when a consumer joins or leaves.
* `designed-rolling-restart-*`: a burst of permits and acknowledgements frees many hashes within 2 ms. If the first
  replay read comes before the burst, other entries use up the permits than if it comes after it. The consumer then
  holds other entries when it leaves, and the findings differ. In the traces the read mostly follows the burst directly
  (the executor shares its threads with the connections). No rule was found for which pause ends a burst: gaps of 100,
  200, 300 and 600 microseconds were tried, and none of them reaches more recordings overall. In the recordings of 4.2.4
  the acknowledgements do not settle it: all of them are explained both ways.
* `4.0.0-preview.1/random-0026-failover-modulo-quiet`: the client requests redelivery of everything while it holds 46
  entries. The recorded broker took 2.7 ms to read the first 25 and 3.4 ms to send them; by then the client had
  acknowledged the other 21. The simulated broker takes 0.1 and 0.15 ms and sends these 21 again. All acknowledgements
  are explained both ways.

Entries that are sent and never answered were tried as evidence, too, because a recording mostly has fewer of them than
its simulation. But the broker that leaves the fewest unanswered is often too slow to send what a consumer held when it
left. If one such entry counts as much as one explained acknowledgement, 1 recording is gained and 9 are lost (4 and 18
if the search also runs where all acknowledgements are explained). If it only decides between brokers that explain
equally many, 2 are lost.
"""


def page(found: Sequence[Identity]) -> str:
    """The page as Markdown."""
    rows = [
        "| recordings | n | same first consumers | same findings | reached |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind in BARS:
        some = [identity for identity in found if identity.kind == kind]
        if some:
            counts = (
                sum(identity.consumers_alike for identity in some),
                sum(identity.findings_alike for identity in some),
                sum(identity.passes for identity in some),
            )
            rows.append(f"| `{kind}` | {len(some)} | {counts[0]} | {counts[1]} | {counts[2]} |")
    missed = [identity for identity in found if not identity.passes]
    table = ["| recording | same first consumer | findings | missing | extra |", "|---|---:|---:|---:|---:|"]
    table += [
        f"| `{identity.recording}` | {identity.same} of {identity.entries} "
        f"({identity.same / identity.entries:.1%}) | {identity.findings} "
        f"| {identity.missing} | {identity.extra} |"
        for identity in missed
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
    print(f"{sum(identity.passes for identity in found)} of {len(found)} recordings reach their bar")
    return 0


if __name__ == "__main__":
    sys.exit(main())
