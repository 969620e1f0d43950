"""The checker of journals finds each fault that is put into them, and no other."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.recorder.comparison import stalled_s
from tests.recorder.journal import Step
from tests.recorder.truth import Truth, truth

SECOND = 1_000_000_000


def seen(*lines: Sequence[object]) -> Truth:
    """Lines ``(what, consumer, entry, key)``, a second apart; c1 and c2 have joined."""
    steps = [Step(0, "joined", "c1"), Step(1, "joined", "c2")]
    for number, (what, consumer, entry, key) in enumerate(lines, 1):
        steps.append(Step(number * SECOND, what, consumer, (3, entry), -1, key, entry))  # type: ignore[arg-type]
    return truth(steps)


def got(consumer: str, entry: int, key: str = "k") -> Sequence[object]:
    return ("received", consumer, entry, key)


def acked(consumer: str, entry: int, key: str = "k") -> Sequence[object]:
    return ("acked", consumer, entry, key)


def test_ascending_keys_are_in_order() -> None:
    clean = seen(
        got("c1", 1), got("c1", 3), got("c2", 2, "other"), acked("c1", 1), acked("c1", 3), got("c2", 4)
    )
    assert (clean.broken_keys, clean.at_two, clean.after_ack) == (set(), set(), set())


def test_going_back_is_out_of_order() -> None:
    assert seen(got("c1", 3), got("c1", 1)).out_of_order == {("c1", "k", (3, 1))}


def test_messages_without_a_key_have_no_order() -> None:
    clean = seen(got("c1", 3, ""), got("c1", 1, ""), got("c2", 4, ""))
    assert (clean.out_of_order, clean.broken_keys) == (set(), set())
    assert seen(got("c1", 1, ""), got("c2", 1, "")).at_two == {((3, 1), -1)}, "but they come once"


def test_what_was_refused_may_come_late() -> None:
    nacked = ("nacked", "c1", 1, "k")
    late = seen(got("c1", 1), nacked, got("c1", 3), got("c1", 1))
    assert (late.out_of_order, late.doubtful, late.repeated) == (set(), {("c1", "k", (3, 1))}, False)


def test_one_acknowledgement_settles_what_the_client_has_twice() -> None:
    """The second delivery waited in the client; a later one after a reload is outstanding again."""
    twice = [got("c1", 1), acked("c1", 1), got("c1", 1)]
    assert seen(*twice, got("c2", 3)).split_keys == set()
    assert seen(*twice, got("c2", 3)).after_ack == {((3, 1), -1)}
    assert seen(*twice, ("reload", "", 0, ""), got("c1", 1), got("c2", 3)).split_keys == {"k"}


def test_again_while_it_is_in_hand() -> None:
    assert seen(got("c1", 1), got("c1", 1)).again_in_hand == {((3, 1), -1)}
    assert not seen(got("c1", 1), ("nacked", "c1", 1, "k"), got("c1", 1)).repeated


def test_an_entry_is_refused_as_a_whole() -> None:
    batch = [
        Step(0, "joined", "c1"),
        *(Step(at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
        Step(3, "nacked", "c1", (3, 1), 1, "k", 2),
    ]
    again = [Step(3 + at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)]
    assert not truth([*batch, *again]).repeated
    assert truth([*batch, *again, Step(9, "received", "c1", (3, 1), 0, "k", 1)]).repeated


def test_each_refusal_of_a_message_of_an_entry_may_send_it_again() -> None:
    """The second request is on its way when the first one's messages come."""
    batch = [
        Step(0, "joined", "c1"),
        *(Step(at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
        *(Step(2 + at, "nacked", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
        *(Step(4 + at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
        *(Step(6 + at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
    ]
    assert not truth(batch).repeated
    assert truth([*batch, Step(9, "received", "c1", (3, 1), 0, "k", 1)]).again_in_hand == {((3, 1), 0)}


def test_an_acknowledgement_behind_a_request_for_its_entry_may_come_too_late() -> None:
    batch = [
        Step(0, "joined", "c1"),
        *(Step(at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
        Step(3, "nacked", "c1", (3, 1), 1, "k", 2),
        Step(4, "acked", "c1", (3, 1), 0, "k", 1),
        *(Step(4 + at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
    ]
    assert not truth(batch).repeated
    again = Step(9, "received", "c1", (3, 1), 0, "k", 1)
    assert truth([*batch, Step(8, "acked", "c1", (3, 1), 0, "k", 1), again]).after_ack == {((3, 1), 0)}


def test_the_rest_of_a_batch_is_refused_with_its_first_message() -> None:
    """The second message waits in the client's queue while the first one is refused."""
    batch = [
        Step(0, "joined", "c1"),
        Step(1, "received", "c1", (3, 1), 0, "k", 1),
        Step(2, "nacked", "c1", (3, 1), 0, "k", 1),
        Step(3, "received", "c1", (3, 1), 1, "k", 2),
        Step(4, "acked", "c1", (3, 1), 1, "k", 2),
        *(Step(4 + at, "received", "c1", (3, 1), at - 1, "k", at) for at in (1, 2)),
    ]
    assert not truth(batch).repeated
    again = [Step(7, "acked", "c1", (3, 1), 1, "k", 2), Step(8, "received", "c1", (3, 1), 1, "k", 2)]
    assert truth([*batch, *again]).after_ack == {((3, 1), 1)}


def test_the_java_client_asks_for_the_entry_behind_a_refused_one() -> None:
    """The first message behind the refused ones leaves its queue, so it asks for this entry, too, and gets it again."""

    def received(entry: int, index: int, at: int, consumer: str = "c1") -> Step:
        return Step(at, "received", consumer, (3, entry), index, "k")

    refused = [Step(0, "joined", "c1"), received(1, 0, 1), Step(2, "nacked", "c1", (3, 1), 0, "k")]
    behind = [received(2, 1, 3), received(3, 0, 4)]
    again = [received(1, 0, 5), received(1, 1, 6), received(2, 0, 7), received(2, 1, 8)]
    seen_all = truth([*refused, *behind, *again])
    assert (seen_all.out_of_order, seen_all.repeated) == (set(), False)
    assert seen_all.doubtful == {("c1", "k", (3, 1)), ("c1", "k", (3, 2))}
    whole = truth([*refused, received(2, 0, 3), *behind, *again])
    assert whole.out_of_order == {("c1", "k", (3, 2))}, "its first message had come: nobody had asked for it"
    assert whole.again_in_hand == {((3, 2), 0), ((3, 2), 1)}
    acked = [Step(0, "joined", "c2"), received(2, 0, 0, "c2"), Step(0, "acked", "c2", (3, 2), 0, "k")]
    rest = truth([*acked, *refused, *behind, *again])
    assert rest.out_of_order == {("c1", "k", (3, 2))}, "the broker leaves out what was acknowledged"


def test_the_rest_of_a_batch_came_with_its_first_message() -> None:
    """A client takes messages of a batch from its queue, while another one gets an earlier entry of the key again."""

    def received(consumer: str, entry: int, index: int, at_s: int) -> Step:
        return Step(at_s * SECOND, "received", consumer, (3, entry), index, "k")

    joined = [Step(0, "joined", "c1"), Step(1, "joined", "c2")]
    rest = [received("c1", 9, 0, 1), received("c2", 4, 0, 2), received("c1", 9, 1, 3)]
    assert truth([*joined, *rest]).split_keys == set()
    again = [*rest, received("c1", 9, 0, 4)]
    assert truth([*joined, *again]).split_keys == {"k"}


def test_a_key_at_two_consumers_is_split_until_the_first_is_done() -> None:
    assert seen(got("c1", 1), got("c2", 2)).split_keys == {"k"}
    assert seen(got("c1", 1), acked("c1", 1), got("c2", 2)).split_keys == set()
    assert seen(got("c1", 1), ("left", "c1", -1, ""), got("c2", 1)).split_keys == set()
    assert seen(got("c1", 1), got("c2", 1)).at_two == {((3, 1), -1)}


def test_after_its_acknowledgement() -> None:
    again = seen(got("c1", 1), acked("c1", 1), got("c2", 1))
    assert again.after_ack == {((3, 1), -1)}


def test_an_acknowledgement_that_a_kill_may_have_kept_back_does_not_count() -> None:
    steps = [
        Step(0, "joined", "c1"),
        Step(1, "joined", "c2"),
        Step(SECOND, "received", "c1", (3, 1), -1, "k", 1),
        Step(2 * SECOND, "acked", "c1", (3, 1), -1, "k", 1),
        Step(2 * SECOND + SECOND // 10, "killed", "c1"),
        Step(3 * SECOND, "received", "c2", (3, 1), -1, "k", 1),
    ]
    assert truth(steps).after_ack == set()


def test_a_reload_excuses_one_step_back_of_each_consumer_and_counts_apart() -> None:
    reload = ("reload", "", -1, "")
    back = seen(got("c1", 1), acked("c1", 1), got("c1", 3), reload, got("c1", 1), got("c1", 3))
    assert (back.out_of_order, back.after_ack) == (set(), set())
    assert back.after_ack_and_reload == {((3, 1), -1)}
    twice = seen(got("c1", 1), got("c1", 3), reload, got("c1", 1), got("c1", 3), got("c1", 1))
    assert twice.out_of_order == {("c1", "k", (3, 1))}


def test_failover_rewinds_when_somebody_leaves() -> None:
    steps = [
        Step(0, "joined", "c2", type="Failover"),
        Step(1, "joined", "c1", type="Failover"),
        *(Step(2 + entry, "received", "c1", (3, entry), -1, "k", entry) for entry in (1, 2)),
        Step(5, "left", "c2"),
        Step(6, "received", "c1", (3, 1), -1, "k", 1),
    ]
    assert truth(steps).out_of_order == set()
    assert truth([step for step in steps if step.what != "left"]).out_of_order == {("c1", "k", (3, 1))}


def test_what_is_published_and_never_comes() -> None:
    assert seen(("published", "", 1, "k"), ("published", "", 2, "k"), got("c1", 1)).unseen == {((3, 2), -1)}


def test_a_stall_is_proved_by_the_raw_lines(tmp_path: Path) -> None:
    def stalled(*lines: Mapping[str, Any]) -> float:
        rows = [{"incarnation": 1, "seq": seq, "t_us": seq, **line} for seq, line in enumerate(lines, 1)]
        (tmp_path / "events-1.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
        return stalled_s(tmp_path)

    stored = "\n".join(json.dumps({"position": f"3:{entry}"}) for entry in range(3))
    (tmp_path / "messages-1.jsonl.gz").write_bytes(gzip.compress(stored.encode()))
    added = {"kind": "consumer_added", "consumer": 1}
    flow = {"kind": "flow", "consumer": 1, "permits": 2}
    sent = {"kind": "sent", "consumer": 1, "positions": ["3:0"], "batch_sizes": [1]}
    ack = {"kind": "ack", "consumer": 1, "positions": ["3:0"]}
    left = {"kind": "consumer_removed", "consumer": 1, "t_us": 90_000_000}
    assert 89 < stalled(added, flow, sent, ack, left) < 90
    assert stalled(added, flow, sent, left) == 0, "one message is not acknowledged"
    assert stalled(added, flow, sent, sent | {"positions": ["3:1"]}, ack, left) == 0, "no permits are left"
    assert stalled(added, flow, sent, ack, left | {"t_us": 30_000_000}) == 0, "not long enough"
    assert stalled(added, flow, sent | {"positions": ["3:0", "3:1", "3:2"]}, ack, left) == 0, (
        "everything was sent"
    )
