"""A dispatcher of several consumers that is closed reads nothing any more (getFirstAvailableConsumerPermits, IS_CLOSED).

In ``4.2.4/soak-5149-first-classic-ch-racing`` (tests/data/races) the topic is unloaded. The dispatcher is closed, then its
consumers are disconnected one after the other. The entries of the first one go to the replay set, and the second one has
permits; but the read attempts of the removal read nothing. The recorder of that time wrote no line of the closing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dispatch_core.verify.trace.multiple_consumers import CLOSES_WITHIN_US
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-5149-first-classic-ch-racing"
)

Trace = list[dict[str, Any]]


def result_of(trace: Trace, where: Path) -> Verification:
    """Verify a changed copy of the recording."""
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    return t.verified(t.copy_with(RECORDING, trace, where))


def first_removal(trace: Trace) -> int:
    """The index of the line ``consumer_removing`` of the first consumer that the closed dispatcher disconnects."""
    return t.places(trace, "consumer_removing")[-2]


def closing(trace: Trace) -> dict[str, Any]:
    """The line that a recorder writes when the dispatcher is closed."""
    before = trace[first_removal(trace)]
    own = {name: before[name] for name in ("topic", "subscription", "incarnation", "t_us")}
    return own | {"kind": "all_disconnecting"}


def test_attempts_of_a_closed_dispatcher_read_nothing() -> None:
    assert t.verified(RECORDING).tally.total("divergent") == 0


def test_a_line_shows_that_it_is_closed(tmp_path: Path) -> None:
    """With the line, it does not matter when the other consumers leave."""
    trace = t.raw(RECORDING)
    trace.insert(first_removal(trace), closing(trace))
    for line in trace[t.places(trace, "consumer_removing")[-1] :]:
        line["t_us"] += 2 * CLOSES_WITHIN_US
    assert result_of(trace, tmp_path).tally.total("divergent") == 0


def test_a_consumer_that_leaves_alone_is_no_closing(tmp_path: Path) -> None:
    """The other consumer leaves much later: the entries should have been read for it."""
    trace = t.raw(RECORDING)
    for line in trace[t.places(trace, "consumer_removing")[-1] :]:
        line["t_us"] += 2 * CLOSES_WITHIN_US
    result = result_of(trace, tmp_path)
    (first, *_) = [finding for finding in result.tally.findings if finding.status == "divergent"]
    assert (first.decision_class, first.expected, first.recorded) == ("state", "pending_replay True", "False")


def test_a_read_of_a_closed_dispatcher_diverges(tmp_path: Path) -> None:
    """The closing is moved in front of a read that was issued."""
    trace = t.raw(RECORDING)
    line, issued = closing(trace), t.places(trace, "read_issued")[0]
    attempt = max(at for at in t.places(trace, "read_attempt") if at < issued)
    trace.insert(attempt, line | {"t_us": trace[attempt]["t_us"]})
    result = result_of(trace, tmp_path)
    assert result.tally.counts["read"]["divergent"] > 0
