"""The search for an order of commands that a decision of the trace goes together with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dispatch_core.verify.trace.races import MAX_ORDERS, Command, Difference, Outcome, search

STEPS: Final = 60


@dataclass
class _Stage:
    """A core in which only a late flow has an effect: ``counted_at`` is the step at which it comes, or ``STEPS``."""

    late: list[Command] = field(default_factory=list)

    def restore(self) -> None:
        self.late = []

    def apply_early(self, _command: Command) -> None:
        pass

    def apply_late(self, command: Command) -> None:
        self.late.append(command)

    def counted_at(self, between: Callable[[int], None]) -> int:
        """Decide: return the step before which the flow comes."""
        found = STEPS
        for step in range(STEPS):
            between(step)
            if self.late and found == STEPS:
                found = step
        return found


def _searched(acks: int, flow: Command, differences: Callable[[int], list[Difference]]) -> Outcome[int]:
    waiting = {1: [Command(seq, 1, entry=seq) for seq in range(1, acks + 1)]} if acks else {}
    stage = _Stage()
    return search(stage, waiting, {2: [flow]}, STEPS, stage.counted_at, differences)


def test_many_commands_of_one_connection_leave_orders_to_others() -> None:
    acks = 40
    assert acks * STEPS > 2 * MAX_ORDERS
    flow, held_up_to = Command(50, 2, "flow of 1", permits=1, step=10), 12
    differing = [Difference("dispatch", "the flow counts for a turn", "it does not")]
    outcome = _searched(acks, flow, lambda at: [] if at == held_up_to else differing)
    assert (outcome.explained, outcome.answer, outcome.early, outcome.racing) == (True, held_up_to, [], flow)


def test_what_no_line_shows_explains_what_an_order_leaves() -> None:
    """The flow explains who is sent what, and a write without a line explains that the round reads on."""
    flow, write = (
        Command(50, 2, "flow of 1", permits=1, step=10),
        Command(51, 0, "the write of what was sent"),
    )
    sent = Difference("dispatch", "7 entries", "3 entries", weight=5)

    def differences(unlogged: Command | None) -> Callable[[int], list[Difference]]:
        reads_on = Difference("round", "retry False", "retry True", unlogged=unlogged)
        return lambda at: [reads_on] if at == STEPS else [sent, reads_on]

    outcome = _searched(0, flow, differences(write))
    assert (outcome.explained, outcome.answer, outcome.racing, outcome.late) == (True, STEPS, flow, [flow])
    assert [difference.unlogged for difference in outcome.left] == [write]
    refuted = _searched(0, flow, differences(None))
    assert (refuted.explained, refuted.racing, len(refuted.plain)) == (False, None, 2)


def test_what_no_line_shows_explains_nothing_else() -> None:
    """A difference in the deliveries, which no order takes away, leaves the end of the round unexplained, too."""
    flow, write = (
        Command(50, 2, "flow of 1", permits=1, step=10),
        Command(51, 0, "the write of what was sent"),
    )
    differing = [
        Difference("dispatch", "7 entries", "3 entries"),
        Difference("round", "", "", unlogged=write),
    ]
    outcome = _searched(0, flow, lambda _at: differing)
    assert (outcome.explained, outcome.left, outcome.plain) == (False, [], differing)
