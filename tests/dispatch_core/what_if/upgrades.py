"""Predictions made by hand of a home with many subscriptions."""

from __future__ import annotations

from typing import Any

from dispatch_core.what_if.compare import Control, Outcome, Row
from dispatch_core.what_if.key_affinity import KeyAffinity
from dispatch_core.what_if.measure import Measures, Spread
from dispatch_core.what_if.rules import RuleSet
from dispatch_core.what_if.upgrade_risk import Risk, Upgrade, risk, worst_first

ASKED = Upgrade("5.0.1", {})
#: A name of an attacker.
HOSTILE = "<img src=x onerror=alert(1)>&\"'"
UNMEASURED = "no recordings of 5.0.1 were compared, only of 4.2.4"


def measures(violations: int = 0, p99: float = 900.0, **more: Any) -> Measures:
    """Measure a subscription with some order violations and waits."""
    return Measures(
        topics=1,
        entries=1000,
        messages=1000,
        split_key=violations,
        keys_out_of_order=min(violations, 9),
        wait_ms=Spread(p99 / 3, p99, p99 * 1.2),
        messages_of={"a": 600, "b": 400},
        fair_of={"a": 500.0, "b": 500.0},
        affinity=KeyAffinity(keys=30),
        **more,
    )


def predicted(
    recorded: Measures | None,
    simulated: list[Measures],
    *,
    control: list[Measures] | None = None,
    **more: Any,
) -> Row:
    """Make a prediction of one subscription: its recording, simulations, and those under the recorded rules."""
    repeated = [recorded] if control is None and recorded is not None else control or []
    fields: dict[str, Any] = {
        "recording": "r/1",
        "cluster": "c",
        "topic": "persistent://public/default/orders",
        "subscription": "s",
        "subscription_type": "Key_Shared",
        "incarnation": 0,
        "rules": RuleSet("5.0.1", "5.0.1", {}),
        "profile": "p",
        "outcomes": tuple(Outcome(seed, found, 0.75) for seed, found in enumerate(simulated)),
        "control": tuple(Outcome(seed, found, 0.9) for seed, found in enumerate(repeated)),
        "judged": Control(0.9, 0, 0, 1.0) if repeated else None,
    }
    return Row(recorded=recorded, **(fields | more))


def home(subscriptions: int) -> list[Risk]:
    """Make the risks of a home: of 40 subscriptions one gets violations, one loses them, one cannot be judged, and so on."""
    found = []
    for number in range(subscriptions):
        names = {
            "topic": f"persistent://tenant-{number % 17}/orders/topic-{number:05}",
            "subscription": HOSTILE if number == 7 else f"worker-group-{number % 5}",
        }
        kind = number % 40
        before = measures(63 if kind == 1 else 0, never_sent=12 if kind == 4 else 0)
        after = measures(
            number % 97 + 1 if kind == 0 else 0,
            p99=5000.0 if kind == 3 else 900.0 + number % 7,
            never_sent={4: 12, 5: 40}.get(kind, 0),
            stuck_keys=3 if kind == 5 else 0,
        )
        if kind == 2:
            row = predicted(
                None, [], problem="Shared subscriptions are not simulated, only Key_Shared", **names
            )
        else:
            row = predicted(before, [after] * 5, not_measured=UNMEASURED, **names)
        found.append(risk([row]))
    return worst_first(found)


def partitions(count: int, worst: int, *, topic: str = "persistent://shop/eu/orders") -> list[Risk]:
    """Make the risks of a topic's partitions, of which ``worst`` gets violations and its next one loses some."""
    found = []
    for number in range(count):
        before = measures(63 if number == (worst + 1) % count else 0)
        after = measures(7 if number == worst else 0, p99=900.0 + number)
        row = predicted(before, [after] * 5, topic=f"{topic}-partition-{number}", not_measured=UNMEASURED)
        found.append(risk([row]))
    return worst_first(found)
