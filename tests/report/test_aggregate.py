"""Figures of a report against plain counting; at any size a chart has few marks."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.report.aggregate import MAX_BARS, Collected, held_back_of, shares_of
from dispatch_core.report.flow import MAX_STEPS, Flow
from dispatch_core.report.page import page
from dispatch_core.report.pictures import label, pictures
from dispatch_core.report.ring import (
    EXACT_SCATTERED,
    MAX_RECTANGLES,
    Change,
    Ring,
    owned_ranges,
    ring_of,
)
from tests.report.tables import HOSTILE, HOSTILE_CONSUMER, START_US, finding, hostile_report, report, table

SPAN = START_US, START_US + 60_000_000


def rows(t_us: list[int], number: int = 1) -> pa.Table:
    return pa.table(
        {"t_us": pa.array(t_us, pa.int64()), "delivery_number": pa.array([number] * len(t_us), pa.int32())}
    )


@given(
    st.lists(st.tuples(st.integers(0, 59_999), st.integers(0, 59_999)), max_size=40),
    st.lists(st.integers(0, 59_999), max_size=5),
    st.randoms(use_true_random=False),
)
def test_backlog_is_what_is_stored_and_not_sent_yet(
    entries: list[tuple[int, int]], unsent: list[int], random: Random
) -> None:
    """Compare with counts at the end of every step, for rows in any order and batches."""
    stored = [START_US // 1000 + min(pair) for pair in entries] + [
        START_US // 1000 + stored_ms for stored_ms in unsent
    ]
    sent = [START_US + max(pair) * 1000 for pair in entries]
    lines = []
    for _ in range(2):
        flow = Flow(*SPAN)
        random.shuffle(stored)
        random.shuffle(sent)
        cut = random.randint(0, len(sent))
        flow.deliveries(rows(sent[:cut]))
        flow.stored(pa.chunked_array([stored], pa.int64()))
        flow.deliveries(rows(sent[cut:]))
        lines.append(flow.lines(len(unsent)))
    first, second = lines
    assert first.step_us == second.step_us
    for name in ("t_us", "first", "waiting"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()
    assert first.t_us.size <= MAX_STEPS
    for at, waiting in zip(first.t_us.tolist(), first.waiting.tolist(), strict=True):
        end = at + first.step_us
        assert waiting == sum(ms * 1000 < end for ms in stored) - sum(us < end for us in sent)


def test_what_lies_outside_of_the_interval_does_not_widen_the_picture() -> None:
    flow = Flow(*SPAN)
    flow.deliveries(rows([START_US, 1 << 61, -5]))
    flow.deliveries(rows([START_US + 1], 2))
    flow.stored(pa.chunked_array([[0, None, 1 << 60, START_US // 1000]], pa.int64()))
    lines = flow.lines()
    assert (lines.first.sum(), lines.again.sum(), lines.total, lines.t_us.size) == (1, 1, 2, 1)
    assert Flow(*SPAN).lines().t_us.size == 0


def test_stored_entries_of_a_topic_are_shared_by_its_subscriptions() -> None:
    topic, merged, alone = Flow(*SPAN), Flow(*SPAN), Flow(*SPAN)
    times = pa.chunked_array([[START_US // 1000 + 40 * at for at in range(1000)]], pa.int64())
    topic.stored(times)
    alone.stored(times)
    for flow in (merged, alone):
        flow.deliveries(rows([START_US + 39_999_000]))
    merged.merged(topic)
    assert merged.lines(999).waiting.tolist() == alone.lines(999).waiting.tolist()


def owned(count: int, times: int, owners: int) -> pa.Table:
    width = 65_536 // count
    return table(
        "ownership",
        *(
            {
                "consumer": (at * 7 + time) % owners,
                "consumer_name": f"w{(at * 7 + time) % owners}",
                "from_t_us": START_US + time * 1_000_000,
                "until_t_us": None if time == times - 1 else START_US + (time + 1) * 1_000_000,
                "range_start": at * width,
                "range_end": at * width + width - 1,
            }
            for time in range(times)
            for at in range(count)
        ),
    )


def drawn(ownership: pa.Table, *changes: Change) -> Ring:
    return ring_of(*owned_ranges(ownership, SPAN), changes, SPAN)


def test_few_ownerships_are_drawn_as_they_were() -> None:
    ring = drawn(owned(16, 5, 3), Change(START_US, True, "w0", 1), Change(SPAN[1], False, "w0", 9))
    assert ring.exact
    assert ring.owner.size == 16 * 5
    area = ((ring.until_us - ring.from_us) * (ring.high - ring.low)).sum()
    assert area == 60_000_000 * 65_536
    assert [change.seq for change in ring.changes] == [1]  # the other is of a later interval


def test_many_ownerships_are_drawn_coarsely_and_cover_the_same_area() -> None:
    ring = drawn(owned(512, 60, 5))
    assert not ring.exact
    assert EXACT_SCATTERED < 512 * 60
    assert 0 < ring.owner.size <= MAX_RECTANGLES
    area = ((ring.until_us - ring.from_us) * (ring.high - ring.low)).sum()
    assert area == pytest.approx(60_000_000 * 65_536, rel=0.01)
    # Nothing is drawn twice: at any moment a hash has one owner.
    for t_us in np.linspace(START_US + 1, SPAN[1] - 2, 17).astype(np.int64):
        now = (ring.from_us <= t_us) & (ring.until_us > t_us)
        low, high = np.sort(ring.low[now]), np.sort(ring.high[now])
        assert (low[1:] >= high[:-1]).all()


def test_a_part_is_shown_as_its_largest_owners() -> None:
    from dispatch_core.report.ring import _largest_owners

    # owner, from, until, low, high: owner 1 has 60 of the first 100 hashes in two parts, no owner has the last.
    cut = np.array([[1, 0, 1, 0, 30], [2, 0, 1, 30, 70], [1, 0, 1, 70, 160], [2, 0, 1, 160, 200]]).T
    assert _largest_owners(cut, np.array([0, 100, 200, 300])).tolist() == [1, 1, -1]


def test_held_time_is_summed_by_consumer_and_rule() -> None:
    us = {"from_t_us": START_US + 1_000_000, "until_t_us": START_US + 3_000_000}
    later = {"from_t_us": START_US + 2_000_000, "until_t_us": None}
    who = {"consumer": 1, "consumer_name": "w1", "reason": "no_permits", "message_ms": 4_000}
    found = held_back_of(
        table(
            "blocked",
            who | us | {"needless_ms": 500},
            who | later | {"uncertain": True, "consumer": 2},
            {
                "reason": "no_consumer",
                "message_ms": 1,
                "from_t_us": START_US - 5_000_000,
                "until_t_us": START_US,
            },
        ),
        SPAN,
    )
    assert [(work.consumer, work.reason, work.message_s, work.needless_s) for work in found] == [
        ("w1", "no_permits", 8.0, 0.5),
        ("everybody", "no_consumer", 0.001, 0.0),
    ]
    assert [(work.clock_s, work.holds, work.uncertain) for work in found] == [(59.0, 2, 1), (0.0, 1, 0)]


def test_more_consumers_than_bars_are_one_bar_together() -> None:
    balance = table(
        "balance",
        *({"consumer_name": f"w{at:03}", "messages": 1_000 - at, "hash_share": 0.01} for at in range(100)),
    )
    shares = shares_of(balance)
    assert len(shares) == MAX_BARS
    assert shares[-1].consumer == "61 others"
    assert sum(share.messages for share in shares) == sum(1_000 - at for at in range(100))
    assert sum(share.hash_share or 0 for share in shares) == pytest.approx(1.0)
    blocked = table(
        "blocked",
        *(
            {"consumer": at, "consumer_name": f"w{at}", "reason": "no_permits", "message_ms": at}
            for at in range(100)
        ),
    )
    found = held_back_of(blocked, SPAN)
    assert len(found) == MAX_BARS
    assert sum(work.message_s for work in found) == pytest.approx(4.95)


def test_every_kind_keeps_findings_however_many_another_has() -> None:
    collected = Collected(limit=10)
    for start in range(0, 60, 20):
        collected.add(table("anomalies", *(finding(seqs=[at], t_us=at) for at in range(start, start + 20))))
    collected.add(table("anomalies", finding(kind="redelivered", severity="info", uncertain=True)))
    found = collected.found({(0, 1): "w1"})
    assert found.counts == {"out_of_order": 60, "redelivered": 1}
    assert found.total == 61
    assert [row["kind"] for row in found.rows] == ["out_of_order"] * 9 + ["redelivered"]
    assert [row["seqs"] for row in found.rows[:9]] == [[at] for at in range(9)]
    assert found.rows[0]["consumers"] == ["consumer 1 (w1)"]


def test_findings_of_one_cause_are_one_group_of_their_severity() -> None:
    collected = Collected(limit=10)
    again = {"kind": "redelivered", "severity": "info", "cause": "disconnect"}
    for seq in range(20):
        collected.add(
            table("anomalies", finding(kind="split_key", seqs=[seq], t_us=seq), finding(**again, seqs=[seq]))
        )
    collected.add(table("anomalies", finding(consumers=[2], positions=["5:1"]), finding(uncertain=True)))
    found = collected.found({(0, 1): "w1", (0, 2): "w2"})
    counts = [(cause.severity, cause.uncertain, cause.count) for cause in found.causes]
    assert counts == [
        ("critical", False, 1),
        ("critical", False, 20),
        ("critical", True, 1),
        ("info", False, 20),
    ]
    assert found.causes[1].sentence.startswith("20 split_key at w1")
    assert found.causes[0].sentence == finding()["explanation"]
    # All are counted, of each cause some are listed.
    assert {row["cause"] for row in found.rows} == {0, 1, 2, 3}
    assert all(found.causes[row["cause"]].severity == row["severity"] for row in found.rows)


def test_pictures_begin_where_something_happens() -> None:
    """Of a day in which something was sent for a second, the pictures show the second."""
    flow = Flow(*SPAN)
    flow.deliveries(rows([START_US + 30_000_000, START_US + 31_000_000]))
    begin, end = report(flow=flow, changes=(Change(START_US + 29_000_000, True, "w", 1),)).view_us
    assert START_US + 28_900_000 < begin < START_US + 29_000_000
    assert START_US + 31_000_000 < end < START_US + 31_100_000
    assert report().view_us == SPAN


def test_the_same_tables_give_the_same_bytes() -> None:
    assert page(hostile_report()) == page(hostile_report())


def test_a_page_without_anything_says_so() -> None:
    text = page(report())
    assert "The owners in this interval are not known" in text
    assert "Nothing was stored and nothing was sent" in text
    assert "<p>None.</p>" in text
    assert [picture.figure for picture in pictures(report())] == [None] * 4


def test_hostile_names_are_text_everywhere_in_the_page() -> None:
    text = page(hostile_report())
    data = text.split('id="report-data">', 1)[1].split("</script>", 1)[0]
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(data)["findings"][0]["key"] == HOSTILE
    own, _, scripts = text.partition('id="report-data">')
    for name in (HOSTILE, HOSTILE_CONSUMER, "onerror=alert(2)>"):
        assert name not in own
    assert scripts.count("<script>") >= 2
    assert "default-src 'none'" in text


def test_a_label_is_one_short_line_without_markup() -> None:
    assert label("<b>x\n\u202ey</b>") == r"&lt;b&gt;x\n\u202ey&lt;/b&gt;"
    assert len(label("&" * 1000)) == 5 * 39 + 1


def test_a_finding_of_a_time_without_a_calendar_is_shown() -> None:
    text = page(
        report({"anomalies": table("anomalies", finding(t_us=1 << 62, key="\x00\u202e"), finding(t_us=None))})
    )
    assert f"{1 << 62} us" in text
    text.encode()
