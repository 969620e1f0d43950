"""Each operation on the cursor, each limit and the deletion of a subscription has its line, in three subscription types.

One broker serves all cases, each on a topic of its own. It is stopped before the lines are read.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.recorder.broker import Broker
from tests.recorder.comparison import audited, events, messages, status
from tests.recorder.conftest import Starts
from tests.recorder.scenario import PATIENCE_S

TYPES = ("KeyShared", "Failover", "Shared")
_SUBSCRIPTION = "audit"
_PUBLISHED = 40
#: Received of these, and acknowledged of the received. What is left over waits at consumers and in the backlog.
_RECEIVED, _ACKED = 12, 6
_SKIPPED = 7
#: The broker looks for expired messages once a minute.
_EXPIRED_S = 75


@dataclass(slots=True)
class Case:
    """Clients of one topic: two consumers that hold few messages, so that much waits in the backlog."""

    broker: Broker
    client: pulsar.Client
    namespace: str
    name: str
    type: str
    ids: list[Any] = field(default_factory=list)
    consumers: list[Any] = field(default_factory=list)
    producer: Any = None
    in_hand: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The topic in paths of the admin API."""
        return f"persistent/{self.namespace}/{self.name}-{self.type}"

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self.path.replace("persistent/", "persistent://", 1)

    def admin(self, action: str, body: object = None, *, method: str = "POST") -> None:
        """Perform an action on the subscription; it has to succeed."""
        code = self.broker.admin(method, f"{self.path}/subscription/{_SUBSCRIPTION}{action}", body)
        assert code in (200, 204), f"{method} {action}: {code}"

    def begin(self) -> None:
        """Join, publish, receive some messages and acknowledge half of them."""
        for number in (1, 2):
            self.consumers.append(self.subscribe(f"c{number}"))
        self.producer = self.client.create_producer(self.topic, batching_enabled=False)
        self.publish(_PUBLISHED)
        received = self.receive(_RECEIVED)
        for consumer, message in received[:_ACKED]:
            consumer.acknowledge(message)
        self.in_hand = received[_ACKED:]
        time.sleep(
            1.5
        )  # the client sends acknowledgements after 100 ms; the recorder looks at cursors once a second

    def subscribe(self, name: str) -> Any:
        """Join."""
        return self.client.subscribe(
            self.topic,
            _SUBSCRIPTION,
            consumer_type=getattr(pulsar.ConsumerType, self.type),
            consumer_name=name,
            receiver_queue_size=5,
            initial_position=pulsar.InitialPosition.Earliest,
            start_message_id_inclusive=True,  # else the client drops the message it sought, and never acknowledges it
        )

    def publish(self, count: int, **more: Any) -> None:
        """Publish messages, with their keys in turn, and remember their positions."""
        for _ in range(count):
            number = len(self.ids)
            self.ids.append(
                self.producer.send(str(number).encode(), partition_key=f"key-{number % 10}", **more)
            )

    def receive(self, count: int) -> list[tuple[Any, Any]]:
        """Receive up to so many messages; fewer if none comes any more."""
        found: list[tuple[Any, Any]] = []
        idle = 0
        while len(found) < count and idle < 20:
            idle += 1
            for consumer in self.consumers:
                try:
                    found.append((consumer, consumer.receive(timeout_millis=50)))
                    idle = 0
                except pulsar.Timeout:
                    continue
        return found

    def end(self) -> None:
        """Acknowledge what is in hand, publish again, take all that comes, leave."""
        for consumer, message in self.in_hand:
            consumer.acknowledge(message)
        self.publish(10)
        until = time.monotonic() + PATIENCE_S
        missing = {str(number).encode() for number in range(len(self.ids) - 10, len(self.ids))}
        while missing:
            assert time.monotonic() < until, (
                f"{self.topic}: nothing comes any more, and {missing} are missing"
            )
            for consumer, message in self.receive(20):
                missing.discard(message.data())
                consumer.acknowledge(message)
        for consumer, message in self.receive(2 * len(self.ids)):
            consumer.acknowledge(message)
        for consumer in self.consumers:
            consumer.close()

    def position(self, number: int) -> str:
        """The position of a published message."""
        return f"{self.ids[number].ledger_id()}:{self.ids[number].entry_id()}"

    def reset_data(self, number: int) -> dict[str, Any]:
        """A position as the admin API takes it."""
        chosen = self.ids[number]
        return {
            "ledgerId": chosen.ledger_id(),
            "entryId": chosen.entry_id(),
            "partitionIndex": -1,
            "batchIndex": -1,
            "isExcluded": False,
        }


def skip(case: Case) -> None:
    case.admin(f"/skip/{_SKIPPED}")


def clear(case: Case) -> None:
    case.admin("/skip_all")


def expire_to(case: Case) -> None:
    case.admin("/expireMessages", case.reset_data(25))
    time.sleep(1.5)  # the call is answered before its effect


def expire_old(case: Case) -> None:
    time.sleep(2)
    case.admin("/expireMessages/1")
    time.sleep(1.5)


def reset_back(case: Case) -> None:
    case.admin("/resetcursor", case.reset_data(2))


def reset_forward(case: Case) -> None:
    case.admin("/resetcursor", case.reset_data(30))


def seek_back(case: Case) -> None:
    case.consumers[0].seek(case.ids[2])


def seek_earliest(case: Case) -> None:
    case.consumers[0].seek(pulsar.MessageId.earliest)


def seek_end(case: Case) -> None:
    case.consumers[0].seek(pulsar.MessageId.latest)


#: Operation -> its name in the log, and whether it moves the cursor back.
OPERATIONS: Mapping[Callable[[Case], None], tuple[str, bool]] = {
    skip: ("skip", False),
    clear: ("clear_backlog", False),
    expire_to: ("expiry", False),
    expire_old: ("expiry", False),
    reset_back: ("reset_cursor", True),
    reset_forward: ("reset_cursor", False),
    seek_back: ("seek", True),
    seek_earliest: ("seek", True),
    seek_end: ("seek", False),
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """The lines of all cases, and the cases themselves."""

    recording: Path
    cases: Mapping[tuple[str, str], Case]
    lines: Mapping[str, list[dict[str, Any]]]
    messages: Mapping[str, list[dict[str, Any]]]

    def of(self, name: str, subscription_type: str) -> list[dict[str, Any]]:
        """The lines of a case's subscription, in their order."""
        return self.lines[self.cases[name, subscription_type].topic]


def performed(case: Case, operation: Callable[[Case], None]) -> None:
    """Work, perform one operation, work on."""
    case.begin()
    operation(case)
    time.sleep(1.5)
    case.end()


def namespace_limits(case: Case) -> None:
    """Set limits for the namespace, then remove them again, while no message waits for a client."""
    for consumer, message in (*case.in_hand, *case.receive(_PUBLISHED)):
        consumer.acknowledge(message)
    case.in_hand.clear()
    namespace = f"namespaces/{case.namespace}"
    rate = {"dispatchThrottlingRateInMsg": 30, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    for method, policy, value in (
        ("POST", "subscriptionDispatchRate", rate),
        ("POST", "maxUnackedMessagesPerConsumer", 8),
        ("DELETE", "subscriptionDispatchRate", None),
        ("DELETE", "maxUnackedMessagesPerConsumer", None),
    ):
        assert case.broker.admin(method, f"{namespace}/{policy}", value) == 204
        time.sleep(2.5)  # a topic of the broker may apply two changes at once in the wrong order


def delayed(case: Case) -> None:
    case.publish(5, deliver_after=timedelta(milliseconds=800))


def unload(case: Case) -> None:
    assert case.broker.admin("PUT", f"{case.path}/unload") == 204


def nothing(case: Case) -> None:
    """Only ordinary work."""


def refused(case: Case) -> None:
    """Operations that the broker refuses."""
    assert case.broker.admin("POST", f"{case.path}/subscription/other/skip/3") == 404
    bad = case.reset_data(2) | {"ledgerId": -7, "entryId": -9}
    assert case.broker.admin("POST", f"{case.path}/subscription/{_SUBSCRIPTION}/skip/some", bad) >= 400


OTHERS = (namespace_limits, delayed, unload, nothing, refused)


@pytest.fixture(scope="module")
def recorded(brokers: Starts) -> Recorded:
    broker = brokers("python-operations", {"messageExpiryCheckIntervalInMinutes": "1"})
    client = pulsar.Client(
        broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(broker.folder / "client.log"))
    )
    cases: dict[tuple[str, str], Case] = {}
    own = [f"{name}-{subscription_type}" for name in ("limits", "cleared") for subscription_type in TYPES]
    for namespace in ("ttl", *own):
        assert broker.admin("PUT", f"namespaces/public/{namespace}", {}) in (204, 409)

    def case(namespace: str, name: str, subscription_type: str) -> Case:
        made = Case(broker, client, f"public/{namespace}", name, subscription_type)
        cases[name, subscription_type] = made
        return made

    def live(subscription_type: str) -> None:
        """All cases of a subscription type, one after the other; one expires meanwhile."""
        expiring = case("ttl", "ttl", subscription_type)
        expiring.begin()
        began = time.monotonic()
        for operation in (*OPERATIONS, *OTHERS):
            namespace = f"limits-{subscription_type}" if operation is namespace_limits else "default"
            performed(case(namespace, operation.__name__, subscription_type), operation)
        deleted = case("default", "unsubscribed", subscription_type)
        deleted.begin()
        deleted.consumers.pop().close()
        deleted.consumers.pop().unsubscribe()
        forced = case("default", "deleted", subscription_type)
        forced.begin()
        forced.admin("?force=true", method="DELETE")
        for consumer in forced.consumers:  # they made the subscription again
            consumer.close()
        cleared = case(f"cleared-{subscription_type}", "namespace_clear", subscription_type)
        cleared.begin()
        assert broker.admin("POST", f"namespaces/{cleared.namespace}/clearBacklog") == 204
        time.sleep(max(1.5, _EXPIRED_S - (time.monotonic() - began)))
        cleared.end()
        expiring.end()

    assert broker.admin("POST", "namespaces/public/ttl/messageTTL", 1) == 204
    with ThreadPoolExecutor(len(TYPES)) as threads:
        for done in [threads.submit(live, subscription_type) for subscription_type in TYPES]:
            done.result()
    client.close()
    broker.stop()
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in events(broker.recording):
        if line["subscription"] == _SUBSCRIPTION:
            lines[line["topic"]].append(line)
    stored: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in messages(broker.recording):
        stored[line["topic"]].append(line)
    for found in lines.values():
        found.sort(key=lambda line: (line["incarnation"], line["seq"]))
    return Recorded(broker.recording, cases, lines, stored)


def place(position: str) -> tuple[int, int]:
    ledger, entry = position.split(":")
    return int(ledger), int(entry)


def moves(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == "cursor_moved"]


def sent(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [place(position) for line in lines if line["kind"] == "sent" for position in line["positions"]]


def limits(lines: list[dict[str, Any]]) -> list[tuple[str, bool, int | None]]:
    """The limits that began and ended, in their order; a segment repeats those in force."""
    found: list[tuple[str, bool, int | None]] = []
    for line in lines:
        if line["kind"] == "limit":
            limit = (line["what"], line["active"], line.get("value"))
            if limit not in found:
                found.append(limit)
    return found


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_an_operation_has_one_line_at_its_place(
    recorded: Recorded, operation: Callable[[Case], None], subscription_type: str
) -> None:
    lines = recorded.of(operation.__name__, subscription_type)
    by, back = OPERATIONS[operation]
    (moved,) = moves(lines)
    assert moved["by"] == by
    start, end = place(moved["from"]), place(moved["to"])
    assert (end < start) == back
    at = lines.index(moved)
    before, after = sent(lines[:at]), sent(lines[at:])
    assert len(set(before)) == len(before), "nothing was sent again before the move"
    if back:
        assert min(after) > end
        assert set(before) & set(after), "what was sent came again"
    else:
        assert moved["entries"] > 0
        passed = {(ledger, entry) for ledger, entry in after if (ledger, entry) <= end}
        # a read that was under way may still be sent: no more than the permits of two consumers
        assert len(passed - set(before)) <= 10


@pytest.fixture(scope="module")
def broken(recorded: Recorded) -> dict[str, list[str]]:
    """By topic the promises that the audit says are broken."""
    found: dict[str, list[str]] = defaultdict(list)
    for promise in audited(recorded.recording).verdict["promises"]:
        if promise["verdict"] == "FAIL":
            found[promise["topic"]].append(f"{promise['promise']}: {promise['reason']}")
    return found


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("name", [made.__name__ for made in (*OPERATIONS, *OTHERS)])
def test_an_operation_breaks_no_promise(
    recorded: Recorded, broken: Mapping[str, list[str]], name: str, subscription_type: str
) -> None:
    assert broken.get(recorded.cases[name, subscription_type].topic, []) == []


@pytest.mark.parametrize("subscription_type", TYPES)
def test_skip_passes_as_many_entries_as_it_is_told(recorded: Recorded, subscription_type: str) -> None:
    (moved,) = moves(recorded.of("skip", subscription_type))
    assert moved["entries"] == _SKIPPED


@pytest.mark.parametrize("subscription_type", TYPES)
def test_expiry_by_policy_and_a_cleared_namespace(recorded: Recorded, subscription_type: str) -> None:
    expired = moves(recorded.of("ttl", subscription_type))
    assert {line["by"] for line in expired} == {"expiry"}
    assert sum(line["entries"] for line in expired) >= _PUBLISHED - _ACKED
    (cleared,) = moves(recorded.of("namespace_clear", subscription_type))
    assert cleared["by"] == "clear_backlog"


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("name", [other.__name__ for other in OTHERS])
def test_what_is_no_move_of_the_cursor_has_no_such_line(
    recorded: Recorded, name: str, subscription_type: str
) -> None:
    lines = recorded.of(name, subscription_type)
    assert moves(lines) == []
    assert [line for line in lines if line["kind"] == "subscription_deleted"] == []
    assert len({line["incarnation"] for line in lines}) == (2 if name == "unload" else 1)


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("name", ["unsubscribed", "deleted"])
def test_a_deleted_subscription_ends_with_that_line(
    recorded: Recorded, name: str, subscription_type: str
) -> None:
    lines = recorded.of(name, subscription_type)
    assert [line["kind"] for line in lines].count("subscription_deleted") == 1
    incarnation = [line["incarnation"] for line in lines if line["kind"] == "subscription_deleted"]
    assert [line["kind"] for line in lines if line["incarnation"] == incarnation[0]][
        -1
    ] == "subscription_deleted"


@pytest.mark.parametrize("subscription_type", TYPES)
def test_limits_by_policy_begin_and_end(recorded: Recorded, subscription_type: str) -> None:
    assert sorted(limits(recorded.of("namespace_limits", subscription_type))) == [
        ("dispatch_rate", False, 30),
        ("dispatch_rate", True, 30),
        ("unacked_namespace", False, 8),
        ("unacked_namespace", True, 8),
    ]
    assert limits(recorded.of("nothing", subscription_type)) == []


@pytest.mark.parametrize("subscription_type", TYPES)
def test_delayed_messages(recorded: Recorded, subscription_type: str) -> None:
    case = recorded.cases["delayed", subscription_type]
    expected = [] if subscription_type == "Failover" else [("delayed_delivery", True, None)]
    assert limits(recorded.of("delayed", subscription_type)) == expected
    late = [line for line in recorded.messages[case.topic] if "deliver_at_ms" in line]
    assert [line["position"] for line in late] == [case.position(_PUBLISHED + number) for number in range(5)]
    assert all(0 < line["deliver_at_ms"] - line["publish_time_ms"] <= 1000 for line in late)


def test_the_recorder_had_no_error(recorded: Recorded) -> None:
    counts = status(recorded.recording)
    assert (counts["errors"], counts["lost_events"], counts["failed_lines"]) == (0, 0, 0)
