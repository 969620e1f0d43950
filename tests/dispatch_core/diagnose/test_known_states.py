"""The first answer about a state that real brokers were brought into is right, and no wrong answer is certain."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from dispatch_core.diagnose.answers import Answer
from tests.dispatch_core.diagnose.statistics import RELEASES, answers, as_text, is_right, lines_of, states

MADE = [(release, name) for release in RELEASES for name in states(release)]
QUOTED = list(states("quoted"))
#: Rules that may hold messages beside the state's own, because of what the clients do.
ALSO_TRUE = {
    "key-shared-look-ahead": {"no_permits"},
    "key-shared-look-ahead-draining": {"draining_hash"},
}
#: In these the other consumers get their messages.
BUSY = "-busy"


def moments(release: str, name: str, number: int) -> str:
    return as_text(lines_of(release, name)[-number:])


def wrong_certain(found: list[Answer], name: str, truth: dict[str, str]) -> list[str]:
    allowed = {truth["reason"], *ALSO_TRUE.get(name, ())}
    if name.endswith(BUSY):
        allowed.add("catching_up")
    return [f"{name}: {answer.rule}" for answer in found if answer.certain and answer.rule not in allowed]


def test_there_are_enough_states() -> None:
    reasons = {states(release)[name]["reason"] for release, name in MADE}
    assert len(MADE) >= 30
    assert len(QUOTED) >= 10
    assert reasons >= {
        "draining_hash", "no_permits", "unacked_limit_consumer", "unacked_limit_subscription", "look_ahead_limit",
        "recently_joined", "no_read", "uncovered_range", "no_consumer", "catching_up", "dispatch_rate", "delayed_delivery",
    }  # fmt: skip


@pytest.mark.parametrize(("release", "name"), MADE)
def test_two_moments_of_a_state_give_the_right_answer_first(release: str, name: str) -> None:
    found = answers(moments(release, name, 2))
    truth = states(release)[name]
    assert is_right(found[0], truth), [(answer.rule, answer.certainty) for answer in found]
    assert wrong_certain(found, name, truth) == []


@pytest.mark.parametrize("name", QUOTED)
def test_statistics_quoted_in_an_issue_give_the_right_answer_first(name: str) -> None:
    found = answers(as_text(lines_of("quoted", name)))
    truth = states("quoted")[name]
    assert is_right(found[0], truth), [(answer.rule, answer.certainty) for answer in found]
    assert wrong_certain(found, name, truth) == []


#: What there may be of one moment, and how often the first answer is right at least.
LESS = {
    "two moments without times": 0.95,
    "one moment": 0.95,
    "both documents without time": 0.92,
    "topics stats alone": 0.82,
}


@pytest.mark.parametrize("form", LESS)
def test_less_is_still_mostly_right_and_never_wrongly_certain(form: str) -> None:
    right = 0
    wrong: list[str] = []
    for release, name in MADE:
        last = lines_of(release, name)[-1]
        both = [json.dumps(line[part]) for line in lines_of(release, name) for part in ("stats", "internal")]
        text = {
            "two moments without times": "\n".join(both),
            "one moment": moments(release, name, 1),
            "both documents without time": "\n".join(both[-2:]),
            "topics stats alone": json.dumps(last["stats"]),
        }[form]
        found = answers(text, broker_version=release)
        truth = states(release)[name]
        right += is_right(found[0], truth)
        wrong += wrong_certain(found, name, truth)
    assert wrong == []
    assert right / len(MADE) >= LESS[form]


def test_most_answers_from_two_moments_are_certain() -> None:
    certain = sum(answers(moments(release, name, 2))[0].certain for release, name in MADE)
    assert certain / len(MADE) > 0.85


def test_a_state_that_changes_between_the_moments_is_not_certain() -> None:
    lines = lines_of("4.2.4", "shared-no-permits")
    subscription = lines[1]["stats"]["subscriptions"]["orders"]
    subscription["msgOutCounter"] += 5
    found = answers(as_text(lines))
    assert [(answer.rule, answer.certain) for answer in found] == [
        ("catching_up", True),
        ("no_permits", False),
    ]


def test_moments_that_are_too_near_prove_nothing() -> None:
    lines = lines_of("4.2.4", "shared-lost-read")
    lines[1]["taken"] = lines[0]["taken"].replace("Z", "1Z")
    first = answers(as_text(lines))[0]
    assert (first.rule, first.certain) == ("no_read", False)
    assert first.decided_by


def test_an_open_transaction_may_keep_a_read_waiting() -> None:
    lines = lines_of("4.2.4", "shared-lost-read")
    for line in lines:
        cursor = line["internal"]["cursors"]["orders"]
        cursor["waitingReadOp"] = True
    assert answers(as_text(lines))[0].certain
    for line in lines:
        line["stats"]["ongoingTxnCount"] = 1
    assert not answers(as_text(lines))[0].certain


def test_a_known_limit_makes_the_look_ahead_certain_or_excludes_it() -> None:
    text = moments("4.2.4", "key-shared-look-ahead", 2)
    names = [f"keySharedLookAheadMsgInReplayThreshold{of}" for of in ("PerConsumer", "PerSubscription")]
    full = answers(text, **{names[0]: 20, names[1]: 20_000})[0]
    assert (full.rule, full.certain) == ("look_ahead_limit", True)
    assert [c.name for c in full.holders] == ["c1"]
    rules = [answer.rule for answer in answers(text, **{names[0]: 2_000, names[1]: 20_000})]
    assert "look_ahead_limit" not in rules


def test_a_hash_that_is_counted_twice_names_the_issue_only_where_it_can_be() -> None:
    text = moments("4.0.0", "key-shared-counted-twice", 2)
    assert answers(text)[0].issues[0] == "#24736"
    assert "#24736" not in answers(text, broker_version="4.0.7")[0].issues


def test_answers_say_since_when() -> None:
    lines = lines_of("4.2.4", "key-shared-draining")
    (first, *_) = answers(as_text(lines))
    joined = lines[0]["stats"]["subscriptions"]["orders"]["consumers"][1]["connectedSince"]
    epoch = datetime.fromtimestamp(0, UTC)
    assert first.since_us == (datetime.fromisoformat(joined) - epoch) // timedelta(microseconds=1)
    assert first.since_us == answers(as_text(lines[1:]))[0].since_us
    assert first.held_for == ("c2",)
