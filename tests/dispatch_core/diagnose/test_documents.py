"""Bad and odd input is named in one line, and the rest is answered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dispatch_core.diagnose.documents import documents_in, moments_of
from dispatch_core.diagnose.rules import answers_of
from tests.dispatch_core.diagnose.statistics import answers, as_text, histories, lines_of


def line(name: str = "shared-no-permits") -> dict[str, Any]:
    return lines_of("4.2.4", name)[-1]


def test_the_output_of_pulsar_admin_is_found_between_its_log_lines() -> None:
    both = line()
    text = "2026-11-26T13:00:00 [main] INFO  o.a.p - connecting {to: broker}\n"
    text += json.dumps(both["stats"], indent=2) + "\nWARNING: slow\n" + json.dumps(both["internal"], indent=2)
    found = documents_in("out.txt", text)
    assert [document.kind for document in found.documents] == ["topics stats", "topics stats-internal"]
    assert found.problems == []


def test_a_document_that_breaks_off_is_used_up_to_its_last_complete_subscription() -> None:
    stats = line()["stats"]
    other = json.loads(json.dumps(stats["subscriptions"]["orders"]))
    stats["subscriptions"] = {"first": stats["subscriptions"]["orders"], "second": other}
    whole = json.dumps(stats)
    cut = whole[: whole.index('"second"') + 300]
    found, problems = histories(cut)
    assert [history.now.name for history in found] == ["first"]
    assert len(problems) == 1
    assert "breaks off" in problems[0]
    assert answers_of(found[0])[0].rule == "no_permits"


def test_a_document_without_one_complete_subscription_is_named() -> None:
    whole = json.dumps(line()["stats"])
    found, problems = histories(whole[: whole.index('"consumers"')])
    assert found == []
    assert problems == ["stats.json:1: JSON that breaks off before its first subscription; take it again"]


def test_the_partitions_of_a_partitioned_topic_are_answered_one_by_one() -> None:
    stats = line()["stats"]
    topic = "persistent://public/default/orders-partition-{}"
    text = json.dumps(
        {"msgRateIn": 0.0, "subscriptions": {}, "partitions": {topic.format(at): stats for at in (0, 1)}}
    )
    found, problems = histories(text)
    assert [history.now.topic for history in found] == [topic.format(0), topic.format(1)]
    assert problems == []
    _, problems = histories(json.dumps({"subscriptions": {}, "partitions": {}}))
    assert "add --per-partition" in problems[0]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("msgBacklog", "many", "msgBacklog: expected an integer"),
        ("msgInReplay", None, ""),
        ("unackedMessages", ..., "unackedMessages missing"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(field: str, value: Any, named: str) -> None:
    stats = line()["stats"]
    fields = stats["subscriptions"]["orders"]
    if value is ...:
        del fields[field]
    else:
        fields[field] = value
    (history,), problems = histories(json.dumps(stats))
    assert answers_of(history)[0].rule == "no_permits"
    assert named in " ".join(problems)
    assert bool(problems) is bool(named)


def test_a_consumer_without_permits_in_its_statistics_is_not_taken_for_one_that_has_none() -> None:
    stats = line()["stats"]
    del stats["subscriptions"]["orders"]["consumers"][0]["availablePermits"]
    (history,), problems = histories(json.dumps(stats))
    assert "availablePermits missing" in problems[0]
    assert all(not answer.certain for answer in answers_of(history))
    assert "no_permits" not in [answer.rule for answer in answers_of(history)]


def test_statistics_of_3_x_are_read_by_their_own_fields() -> None:
    both = line("key-shared-classic-recently-joined")
    fields = both["stats"]["subscriptions"]["orders"]
    for name in [name for name in fields if name.startswith(("draining", "dispatchThrottled"))]:
        del fields[name]
    for consumer in fields["consumers"]:
        for name in [name for name in consumer if name.startswith("draining")]:
            del consumer[name]
    first = answers(as_text([both]), broker_version="3.0.17")[0]
    assert (first.rule, [c.name for c in first.holders]) == ("recently_joined", ["c1"])
    assert "#23307" in first.issues


def test_an_error_of_the_broker_is_shown() -> None:
    _, problems = histories('{"reason": "Topic not found"}')
    assert problems == ["stats.json: the broker's answer is an error: Topic not found"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("no json", "no JSON object"),
        ('{"a": 1}', "neither of the two"),
        ('{"cursors": []}', "cursors"),
    ],
)
def test_what_is_no_statistics_is_named(text: str, named: str) -> None:
    found, problems = histories(text)
    assert found == []
    assert len(problems) == 1
    assert named in problems[0]


def test_files_are_paired_and_ordered_by_the_times_in_their_names() -> None:
    first, second = lines_of("4.2.4", "shared-no-permits")
    documents = []
    for name, value in (
        ("stats-2026-11-26T13:00:05Z.json", second["stats"]),
        ("stats-2026-11-26T13:00:00Z.json", first["stats"]),
        ("internal-2026-11-26T13:00:05Z.json", second["internal"]),
        ("internal-2026-11-26T13:00:00Z.json", first["internal"]),
    ):
        documents += documents_in(name, json.dumps(value)).documents
    moments = moments_of(documents)
    assert [(m.stats is not None, m.internal is not None) for m in moments] == [(True, True), (True, True)]
    taken = [moment.taken_us or 0 for moment in moments]
    assert taken[1] - taken[0] == 5_000_000


@pytest.mark.parametrize(
    ("later_s", "form", "certain"),
    [
        (60, "stats-%Y-%m-%dT%H:%M:%SZ.json", True),
        (60, "stats-%Y-%m-%dT%H:%M:%S.json", False),  # perhaps of another zone
        (-8 * 3600, "stats-%Y-%m-%dT%H:%M:%SZ.json", False),  # earlier than times in it: another clock
        (60, "stats.json", False),
    ],
)
def test_quiet_consumers_prove_a_state_only_by_a_clock_that_fits(
    later_s: int, form: str, certain: bool
) -> None:
    both = line()
    consumer = both["stats"]["subscriptions"]["orders"]["consumers"][0]
    taken = datetime.fromtimestamp(consumer["lastConsumedTimestamp"] / 1000 + later_s, UTC)
    first = answers(json.dumps(both["stats"]), taken.strftime(form), broker_version="4.2.4")[0]
    assert (first.rule, first.certain) == ("no_permits", certain)


def test_consumers_that_were_left_out_are_no_missing_consumers() -> None:
    both = line("shared-unacknowledged")
    both["stats"]["subscriptions"]["orders"]["consumers"] = []
    first = answers(as_text([both]))[0]
    assert first.rule == "unknown"
    assert "--exclude-consumers" in first.said


def test_an_empty_list_in_a_file_of_4_x_is_only_possibly_no_consumer() -> None:
    both = line("shared-no-consumer")
    assert answers(as_text([both]))[0].certain
    assert not answers(json.dumps(both["stats"]))[0].certain
