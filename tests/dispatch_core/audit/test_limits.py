"""Limits: by name, from JSON and from a policy's thresholds; a misspelt name or a senseless value is an error."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch_core.audit.limits import NO_LIMIT, Limits, LimitsError


def test_limits_travel_as_json() -> None:
    limits = Limits(stuck_key_ms=250, hot_key_share=0.25)
    assert Limits.of_json(limits.json()) == limits
    assert Limits.of_json("{}") == Limits()


def test_any_is_never_exceeded() -> None:
    assert Limits.of({"stuck_key_ms": "any", "share_ratio": None}) == Limits(
        stuck_key_ms=NO_LIMIT, share_ratio=NO_LIMIT
    )


def test_a_number_that_no_float_holds_is_never_exceeded() -> None:
    assert Limits.of_json('{"stuck_key_ms": 1' + "0" * 400 + "}").stuck_key_ms == NO_LIMIT


def test_of_a_policy_only_limits_are_taken() -> None:
    policy: dict[str, dict[str, Any]] = {
        "completeness": {"stuck_key": 0.0, "stuck_key_ms": 500.0, "ack_hole_ms": None},
        "balance": {"max_share_ratio": 2.0, "min_messages": 10.0},
    }
    assert Limits.of_policy(policy) == Limits(
        stuck_key_ms=500, ack_hole_ms=NO_LIMIT, share_ratio=2.0, min_messages=10
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"stuck_keys_ms": 1}', "the nearest name is stuck_key_ms"),
        ('{"zzzzzzzz": 1}', "known are"),
        ('{"stuck_key_ms": -1}', "a number from 0 on"),
        ('{"stuck_key_ms": true}', "a number from 0 on"),
        ('{"stuck_key_ms": "soon"}', "a number from 0 on"),
        ('{"stuck_key_ms": NaN}', "a number from 0 on"),
        ("[]", "one JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"stuck_key_ms": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_what_is_no_limit_is_refused(text: str, said: str) -> None:
    with pytest.raises(LimitsError, match=said):
        Limits.of_json(text)
