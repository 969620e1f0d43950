"""Text of an explanation: the reason first, then a timeline that is folded, bounded and harmless."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_core.explain.explanation import Explanation, explanation_of
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import subject_of
from dispatch_core.explain.tell import headline, tell
from dispatch_core.explain.timeline import MOST_LINES, WIDTH, timeline
from tests.dispatch_core.audit.small_logs import (
    Event,
    ack,
    added,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)
from tests.dispatch_core.explain.explanations import (
    CLASSIC,
    DRAIN,
    NEGATIVE,
    OWN,
    SAMPLES,
    explained,
    flow,
    of,
    small,
    stored,
)

SIX = [
    (DRAIN, {"key": "key-7"}, ("draining hashes (PIP-379)", "c1 still held 3:7", "acknowledges 3:37")),
    (DRAIN, {"position": "3:47"}, ("It waited 2.7", "c1 still held", "all acknowledged", "sent once")),
    (DRAIN, {"consumer": "c2"}, ("asked for 1,000 messages", "draining hashes", "% of the hash space")),
    (NEGATIVE, {"key": "key-2"}, ("asks for 11:2 and 11:23 again", "overtaken_redelivery")),
    (
        CLASSIC,
        {"key": "key-32"},
        ("went backwards", "It came about", "read-position rule", "joins and owns the hash"),
    ),
    (OWN, {"consumer": "w1"}, ("connections", "leaves", "hash space")),
]


@pytest.mark.parametrize(("name", "whom", "words"), SIX, ids=lambda value: str(value)[:40])
def test_the_why_is_there(name: str, whom: dict[str, str], words: tuple[str, ...]) -> None:
    if whom == {"position": "3:47"}:
        words = tuple(word for word in words if word != "all acknowledged")
    said = " ".join(" ".join(tell(explained(name, **whom))).split())
    for word in words:
        assert word in said


def test_the_document_shows_the_explanation_of_the_drain() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "explain.md"
    shown = document.read_text(encoding="utf-8")
    text = "\n".join(line.rstrip() for line in tell(explained(DRAIN, key="key-7")))
    assert text in shown


def test_one_moment_says_where_everything_was() -> None:
    (first, *_) = headline(explained(DRAIN, key="key-7"), 1_795_249_220_000_000)
    assert first.startswith(
        "At 08:20:20.000: c1 held 3:17, 3:27 and 3:37; 3:47, 3:57, 3:67 and 3:77 waited to be sent"
    )
    assert "held back, because c1 still held" in first
    assert first.endswith("c2 owned the hash.")
    rows = timeline(explained(CLASSIC, key="key-32"), 1_795_249_463_000_000)
    marks = [row for row in rows if "the moment asked for" in row]
    assert len(marks) == 1
    assert len(rows) < 60


@pytest.mark.parametrize("t_us", [0, 10**16, 2**62])
def test_a_moment_outside_the_log_is_said_to_be(t_us: int) -> None:
    assert "it runs from" in headline(explained(DRAIN, key="key-7"), t_us)[0]


def long_history(tmp_path: Path, rounds: int) -> Explanation:
    """Make a log of a key that is sent and acknowledged many times, with joins, leaves and redelivery requests."""
    events: list[Event] = [added(1, "a"), flow(1)]
    messages = []
    for at in range(rounds):
        messages += [message(3 * at + more, "k") for more in range(3)]
        events += [
            sent(1, 3 * at, 3 * at + 1),
            ack(1, 3 * at),
            ack(1, 3 * at + 1),
            added(at + 2, f"b{at}"),
            removed(at + 2),
        ]
        events += [
            sent(1, 3 * at + 2),
            {"kind": "redeliver", "consumer": 1, "positions": [f"5:{3 * at + 2}"]},
        ]
        events += [sent(1, 3 * at + 2), ack(1, 3 * at + 2)]
    return small(tmp_path, events, messages, {"key": "k"})


@pytest.mark.slow
def test_a_long_timeline_is_folded_and_bounded(tmp_path: Path) -> None:
    explanation = long_history(tmp_path, 200)
    assert len(explanation.moments) > 1500
    rows = timeline(explanation)
    assert len(rows) < 3 * MOST_LINES
    assert any("left out: see --at TIME or --json" in row for row in rows)
    assert len(tell(explanation)) < 3 * MOST_LINES


def test_a_run_of_deliveries_is_one_line(tmp_path: Path) -> None:
    count = 500
    events = [
        added(1, "a"),
        flow(1),
        *(sent(1, at) for at in range(count)),
        *(ack(1, at) for at in range(count)),
    ]
    explanation = small(tmp_path, events, stored(*["k"] * count), {"key": "k"})
    rows = timeline(explanation)
    assert len(rows) < 12
    assert any("sent to a: 500 entries, 5:0 to 5:499, in 500 deliveries" in row for row in rows)
    assert any("a acknowledges 500 entries" in row for row in rows)


def test_lines_are_no_wider_than_a_page() -> None:
    for name, whom, _ in SIX:
        assert max(map(len, tell(explained(name, **whom)))) <= WIDTH


EVIL = "\x1b[2J\x07\u202eevil\n\x00" + "x" * 5000


def test_names_and_keys_cannot_reach_the_terminal_raw(tmp_path: Path) -> None:
    """Escapes, bells, direction marks, line ends and long words in keys, names and the broker's version are harmless."""
    messages = [message(0, EVIL), message(1, "k")]
    rejected = {"kind": "subscribe_rejected", "name": EVIL, "ranges": [], "error": EVIL}
    events = [
        added(1, EVIL),
        added(2, EVIL),
        flow(1),
        rejected,
        sent(1, 0, 1),
        sent(2, 0),
        removed(1),
        sent(2, 0),
    ]
    record, audit = of(read(write(tmp_path, messages, numbered(events))))
    for whom in ({"key": EVIL}, {"position": "5:0"}, {"consumer": EVIL}, {"consumer": "2"}):
        explanation = explanation_of(record, subject_of(record, **whom), audit)
        lines = tell(explanation, record.span_us[0])
        assert all(line.isprintable() for line in lines)
        assert sum(map(len, lines)) < 20_000
        assert all(moment.text.isprintable() for moment in explanation.moments)
    assert "refused" in {moment.what for moment in explanation.moments} or whom == {"consumer": "2"}


def test_the_same_log_gives_the_same_words() -> None:
    first = tell(explained(CLASSIC, key="key-32"))
    again = explained(CLASSIC, key="key-32")
    record = Record.of(again.record.log)
    assert tell(replace(again, record=record)) == first


def test_what_never_happened_is_said(tmp_path: Path) -> None:
    explanation = small(
        tmp_path, [added(1, "a"), flow(1), sent(1, 1)], stored("early", "k"), {"key": "early"}
    )
    said = " ".join(tell(explanation))
    assert "never sent, not acknowledged" in said


@pytest.mark.parametrize(
    ("recording", "whom", "words"),
    [
        ("random-0069-classic-range-racing", {"position": "139:60"}, "this is read_at_tail"),
        ("random-0069-classic-range-racing", {"consumer": "c1"}, "this is read_at_tail"),
        ("stall-classic", {"key": "key-3"}, "it may be lost_read (#26454), read_at_tail or no_attempt"),
    ],
)
def test_a_stall_is_told_with_its_class(recording: str, whom: dict[str, str], words: str) -> None:
    record, audit = of(read(SAMPLES.parents[1] / "stalls" / "4.2.4" / recording))
    said = " ".join(tell(explanation_of(record, subject_of(record, **whom), audit)))
    assert "nothing was read, although a connected consumer had permits" in said
    assert words in said
