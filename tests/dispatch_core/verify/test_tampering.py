"""``verify`` can fail, under every rule: whatever is changed in a real trace is divergent at the line that shows it."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify import tampering_kinds as k
from tests.dispatch_core.verify.tampering import Tampering, Trace

DATA = Path(__file__).resolve().parents[2] / "data"

#: Rule → a small recording under it.
RULES = {
    "draining hashes, 4.2.4": DATA / "recordings/4.2.4/designed-drain-one-by-one-ch",
    "draining hashes, 4.0.0": DATA / "verify/4.0.0/designed-away-and-back-ch",
    "draining hashes, 4.0.0, batches": DATA / "verify/4.0.0/designed-same-name-batches-range",
    "last sent position": DATA / "verify/4.0.0-preview.1/designed-slow-owner-newcomer-ch",
    "last sent position, nacks": DATA / "verify/4.0.0-preview.1/designed-negative-acks-range",
    "sticky ranges": DATA / "verify/4.2.4/designed-sticky-in-order",
    "read position, classic": DATA / "verify/4.0.0/designed-slow-owner-newcomer-classic-ch",
    "read position, classic, all leave": DATA / "verify/4.2.4/designed-all-leave-classic-ch",
}

#: Kind of line, what is done to it, class of decision.
TAMPERINGS: list[tuple[str, Tampering, str]] = [
    ("sent", t.to_another_consumer, "dispatch"),
    ("sent", t.one_to_another_consumer, "dispatch"),
    ("sent", t.two_of_one_key_swapped, "dispatch"),
    ("sent", t.one_not_sent, "dispatch"),
    ("sent", t.sent_line_dropped, "dispatch"),
    ("sent", t.add_to("permits_before"), "permits"),
    ("read_done", t.other_hash, "hash"),
    ("read_issued", t.add_to("max_entries"), "read"),
    ("replay_read_issued", t.one_not_asked_for, "read"),
    ("read_issued", t.read_dropped, "read"),
    ("replay_read_issued", t.read_dropped, "read"),
    ("round_end", t.add_to("in_replay"), "replay_set"),
    ("draining_release", t.release_dropped, "draining"),
    ("draining_release", t.closing_release_dropped, "draining"),
    ("draining_release", t.add_to("ref_count_before"), "draining"),
    ("draining_add", t.add_to("hash"), "draining"),
    ("draining_blocked", t.add_to("hash"), "draining"),
    ("sent", k.sent_outside_a_round, "dispatch"),
    ("read_issued", k.line_twice, "read"),
    ("replay_read_issued", k.line_twice, "read"),
    ("pending_ack_removed", k.ack_without_effect, "draining"),
]


def _cases() -> Iterator[object]:
    """Every tampering, once in every recording that has a line for it, from the middle of the log on."""
    for rule, folder in RULES.items():
        trace, keys = t.raw(folder), t.keys_of(folder)
        for kind, tamper, decision_class in TAMPERINGS:
            lines = t.places(trace, kind)
            for at in (*lines[len(lines) // 2 :], *lines[: len(lines) // 2]):
                changed = copy.deepcopy(trace)
                shows = tamper(changed, at, keys)
                if shows is not None:
                    shows = k.numbered(changed, shows)
                    name = f"{rule}-{tamper.__name__}-{trace[at]['seq']}"
                    yield pytest.param(folder, changed, shows, decision_class, id=name)
                    break


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("folder", "changed", "shows", "decision_class"), list(_cases()))
def test_it_is_found_where_it_was_done(
    folder: Path, changed: Trace, shows: int, decision_class: str, tmp_path: Path
) -> None:
    result = t.verified(t.copy_with(folder, changed, tmp_path))
    first = t.first_wrong(result)
    assert first is not None
    assert (first.seq, first.decision_class) == (shows, decision_class)
    counted = {name: n["decisions"] for name, n in result.tally.counts.items() if n["decisions"]}
    assert counted == dict(+t.published_formula(changed))


# --- another release in the header -------------------------------------------------------------------------------

CLASSIC = DATA / "verify/4.2.4/random-0008-classic-ch-quiet"
BATCHES = DATA / "verify/4.2.4/random-0000-range-quiet"
RING = DATA / "verify/4.2.4/designed-failover-ring-p1"


@pytest.mark.parametrize(
    ("folder", "release", "at"),
    [
        (RULES["draining hashes, 4.2.4"], "4.0.0", 99),  # blocked-hash memory
        (RULES["draining hashes, 4.2.4"], "4.0.0-preview.1", 11),  # hashes
        (RULES["draining hashes, 4.0.0"], "4.0.7", 80),  # hashes that come back
        (RULES["draining hashes, 4.0.0"], "4.2.4", 80),
        (RULES["draining hashes, 4.0.0, batches"], "4.0.3", 226),  # what a cancel clears
        (RULES["draining hashes, 4.0.0, batches"], "4.0.13", 104),  # look-ahead needs more to read
        (BATCHES, "4.2.1", 748),  # when the unblock rule is tested
        (RULES["last sent position"], "3.0.6", 54),  # the same ring and hashes, another ordering rule
        (RULES["last sent position"], "4.0.0", 24),
        (RULES["sticky ranges"], "4.0.6", 385),  # ranges by their end points
        (RULES["read position, classic"], "3.0.17", 23),  # hashes, ring
        (RULES["read position, classic"], "5.0.1", 23),  # no classic dispatcher any more
        (CLASSIC, "3.3.9", 17),
        (RING, "4.0.0", 22),  # PIP-392's flag is not known
    ],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_another_release_in_the_header_is_found_where_its_rules_part(
    folder: Path, release: str, at: int, tmp_path: Path
) -> None:
    trace = t.raw(folder)
    assert t.verified(folder).tally.total("divergent") == 0
    trace[0]["broker_version"] = release
    first = t.first_wrong(t.verified(t.copy_with(folder, trace, tmp_path)))
    assert first is not None
    assert first.seq == at


# --- what only looks like a race ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("older_by_ms", "status"), [(0, "uncertain"), (1000, "divergent")])
def test_has_more_may_be_late_only_where_an_entry_may_have_come(
    tmp_path: Path, older_by_ms: int, status: str
) -> None:
    """A round that did not look ahead, says the trace: right if the next entry was stored during the round."""
    folder = RULES["sticky ranges"]
    trace = t.raw(folder)
    at = next(at for at in t.places(trace, "round_end") if trace[at]["look_ahead"])
    trace[at]["look_ahead"] = False
    copied = t.copy_with(folder, trace, tmp_path)
    with gzip.open(copied / "messages.jsonl.gz", "rt", encoding="utf-8") as lines:
        messages = [json.loads(line) for line in lines]
    for message in messages:
        message["publish_time_ms"] -= older_by_ms
    with gzip.open(copied / "messages.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(message) + "\n" for message in messages)
    first = t.decided(t.verified(copied))[0]
    assert (first.seq, first.decision_class, first.status) == (trace[at]["seq"], "round", status)


def test_a_read_that_made_a_result_was_issued(tmp_path: Path) -> None:
    """A flow that the attempt may not have seen excuses a missing read, until its result comes."""
    folder = RULES["read position, classic"]
    trace = t.raw(folder)
    counted, applied, issued, end, done = (
        t.places(trace, kind)[0]
        for kind in ("flow_counted", "flow_applied", "read_issued", "read_attempt_end", "read_done")
    )
    assert counted < applied < issued < end < done
    before = [line for at, line in enumerate(trace[: end + 1]) if at not in (counted, applied, issued)]
    after = [{**trace[at], "t_us": trace[end]["t_us"]} for at in (counted, applied)]
    kept = [*before, *after, trace[done]]
    for seq, line in enumerate(kept[1:], start=1):
        line["seq"] = seq
    findings = t.decided(t.verified(t.copy_with(folder, kept, tmp_path)))
    assert [(f.seq, f.decision_class, f.status) for f in findings] == [
        (end - 3, "read", "uncertain"),
        (kept[-1]["seq"], "read", "divergent"),
    ]
