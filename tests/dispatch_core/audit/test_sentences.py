"""Texts for people: one name, one duration, one list, and one sentence for each reason."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest

from dispatch_core.audit.catalogue import LIMIT_REASONS, STALL_REASONS
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import listed, positions_listed
from dispatch_core.audit.sentences.names import (
    ConsumerNames,
    connections_in,
    consumer_name,
    display_names,
    numbered,
    printable,
    shown,
)
from dispatch_core.audit.sentences.reasons import ORDERING_RULES, Cause, why
from dispatch_core.times import clock, date_and_clock


class Consumer(NamedTuple):
    number: int
    name: str | None


@pytest.mark.parametrize(
    "us", [994, 995, 9_949, 9_950, 999_499, 999_500, 9_994_999, 599_949_999, 599_950_000]
)
def test_no_duration_shows_a_thousand_of_a_unit_or_more_digits_than_its_step(us: int) -> None:
    number = duration(us).split(" ")[0]
    assert 0.1 <= float(number) < 1000
    assert len(number) <= 5


def test_durations_never_get_shorter_as_time_goes_on() -> None:
    unit_us = {"ms": 1e3, "s": 1e6, "min": 6e7}
    read = [
        float(number) * unit_us[unit]
        for us in range(0, 700_000_000, 91_373)
        for number, unit in [duration(us).split(" ")]
    ]
    assert read == sorted(read)


def test_a_list_never_counts_one_more_that_it_could_have_named() -> None:
    assert listed("abcdef") == "a, b, c, d, e and f"
    assert listed("abcdefg") == "a, b, c, d, e and 2 more"
    assert listed("abcde", 9) == "a, b, c, d, e and 4 more"


def test_positions_are_a_range_only_where_all_of_them_are_known() -> None:
    assert positions_listed(["3:1", "3:2", "3:3"]) == "3:1 to 3:3"
    assert positions_listed(["3:1", "3:2", "3:3"], 3) == "3:1 to 3:3"
    assert positions_listed(["3:1", "3:2", "3:3"], 4) == "3:1, 3:2, 3:3 and 1 more"
    assert positions_listed(["3:1", "3:2", "4:3"]) == "3:1, 3:2 and 4:3"


@pytest.mark.parametrize("limit", [1, 2, 10, 100])
def test_printable_text_is_never_longer_than_its_limit(limit: int) -> None:
    for text in ("a" * 200, "\x1b" * 200, "\u202e" * 5, "é\n" * limit, "\ud800" * 60):
        assert len(printable(text, limit)) <= limit
        assert printable(text, limit).isprintable()


def test_a_name_within_the_limit_is_shown_whole() -> None:
    assert shown("k" * 100) == "k" * 100
    assert shown("k" * 101) == "k" * 99 + "…"


def test_names_that_look_alike_are_distinguished() -> None:
    consumers = [Consumer(1, "a\n"), Consumer(2, "a\\n"), Consumer(3, ""), Consumer(4, "b")]
    expected = ["a\\n (connection 1)", "a\\n (connection 2)", "consumer 3", "b"]
    assert display_names(consumers) == expected
    names = ConsumerNames({consumer.number: consumer.name for consumer in consumers})
    assert [names.of(consumer.number) for consumer in consumers] == expected
    assert (names.of(9), names.of(None)) == ("consumer 9", "nobody")


def test_tables_and_sentences_call_a_nameless_consumer_alike() -> None:
    table = pa.table({"consumer_name": ["w1", None], "consumer": [1, 7]})
    found = connections_in(table)
    assert [found.names[at] for at in found.of_row] == [consumer_name(1, "w1"), consumer_name(7, None)]
    assert numbered(7, None) == "consumer 7"


@pytest.mark.parametrize("reason", [*STALL_REASONS, *LIMIT_REASONS, None])
def test_every_reason_has_a_sentence_of_its_own(reason: str | None) -> None:
    reasons = (*STALL_REASONS, *LIMIT_REASONS, None)
    sentences = {other: why(Cause(other, waiting="w2", holder="w1")) for other in reasons}
    assert list(sentences.values()).count(sentences[reason]) == 1
    assert why(Cause(reason)), "nothing but the reason has to be known"
    assert "None" not in why(Cause(reason))


@pytest.mark.parametrize("reason", ORDERING_RULES)
def test_an_ordering_rule_is_named_and_so_is_what_it_waits_for(reason: str) -> None:
    text = why(Cause(reason, waiting="w2", holder="w1", positions=["3:7", "3:9"], count=12))
    assert ORDERING_RULES[reason] in text
    assert "3:7, 3:9 and 10 more" in text
    assert "w1" in text


def test_a_setting_is_shown_with_its_value_where_that_is_known() -> None:
    limit = "maxUnackedMessagesPerConsumer"
    assert f"{limit} = 50 allows" in why(Cause("unacked_limit_consumer", settings={limit: 50}))
    assert f"{limit} allows" in why(Cause("unacked_limit_consumer"))


def test_the_look_ahead_limit_names_whom_the_entries_wait_for() -> None:
    assert "40 entries that had been read and could not be sent, most of them for w1, filled" in why(
        Cause("look_ahead_limit", holder="w1", count=40)
    )
    others = [("no_permits", "w1"), ("uncovered_range", None)]
    assert "waiting for w1 (no_permits) and (uncovered_range), filled" in why(
        Cause("look_ahead_limit", holder="w1", others=others)
    )


def test_a_drain_without_messages_is_described_beside_one_with_messages() -> None:
    real = Cause("draining_hash", waiting="w2", holder="w1", positions=["3:7"], count=1)
    phantom = Cause("draining_hash", waiting="w2", holder="w1", phantom=True)
    both = Cause(
        "draining_hash", "w2", "w1", ["3:7"], 1, phantom=True, phantom_since_us=1_795_249_461_936_412
    )
    assert "#24736" not in why(real)
    assert why(phantom).startswith("w1 held nothing of it any more")
    assert ". But from 08:24:21.936 on w1 held nothing of it any more" in why(both)


def test_a_time_that_no_calendar_has_is_shown_as_its_number() -> None:
    assert date_and_clock(10**18) == clock(10**18) == f"{10**18} us"
