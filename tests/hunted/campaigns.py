"""The hunts for each mutant: four settings of the newest release in turn.

A find counts only if the right core keeps all promises under its schedule.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any, Final

from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.hunt import schedule
from dispatch_core.hunt.causes import BY_STEPS
from dispatch_core.hunt.search import Find, Hunter
from tests.hunted.mutants import MUTANTS
from tests.wrong_rules.switch import Release, switched

RELEASE: Final = "4.2.4"
#: The holes that 4.2.4 has, which are often met (docs/zoo): such finds are not shrunk.
KNOWN: Final = frozenset(
    {
        *("stuck.rewind_waits", "starved.rewind_waits", "double_outstanding.read_again"),
        *("stuck.normal_read_waits", "starved.normal_read_waits"),
    }
)
#: The right core instead of a mutant.
NONE: Final = "none"
_SPLIT: Final = {"subscriptionKeySharedUseConsistentHashing": False}
_LIMITS: Final = {"maxUnackedMessagesPerConsumer": 2, "acknowledgmentAtBatchIndexLevelEnabled": True}
#: The rules of a campaign and its groups of steps: hanging consumers, limits and batches, races, no order.
CAMPAIGNS: Final[tuple[tuple[Callable[[], Profile], tuple[str, ...]], ...]] = (
    (partial(resolve, RELEASE, _SPLIT), ("hangs",)),
    (partial(resolve, RELEASE, {**_SPLIT, **_LIMITS}), ("batches", "moves")),
    (partial(resolve, RELEASE, _SPLIT), ("races", "rounds")),
    (partial(resolve, RELEASE, _SPLIT, allow_out_of_order=True), ("hangs",)),
)
#: Schedules of a campaign before the next one has its turn, interpreted and compiled; turns with the same keys.
_TURN, _TURN_COMPILED = 250, 20_000
_TURNS_PER_KEYS: Final = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """A find of a hunt, or its end: ``find`` is empty. ``steps``: the shrunk schedule; of a known cause as it was found."""

    find: str
    campaign: int
    keys: list[str]
    steps: list[int]
    seconds: float
    schedules: int

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def breaks_the_right_core(self) -> bool:
        """Check whether the right core breaks a promise under the schedule, too."""
        return _right_core(self.campaign, tuple(self.keys)).play(self.steps) is not None

    def described(self) -> list[str]:
        """Say the steps."""
        return [schedule.describe(step) for step in self.steps]


@lru_cache(maxsize=len(CAMPAIGNS))
def _right_core(campaign: int, keys: tuple[str, ...]) -> Hunter:
    profile, _ = CAMPAIGNS[campaign]
    return Hunter(profile(), keys)


def hunters(seed: int, turn: int) -> Iterator[tuple[int, Hunter]]:
    """Yield campaigns and their hunters in turn, without end."""
    while True:
        keys = [f"key-{number}" for number in random.Random(seed).sample(range(256), 3)]
        now = [
            Hunter(profile(), keys, seed=seed, groups=groups, at_once=turn) for profile, groups in CAMPAIGNS
        ]
        for _ in range(_TURNS_PER_KEYS):
            yield from enumerate(now)
        seed += 1


def hunt(name: str, budget_s: float, seed: int, *, compiled: bool) -> Iterator[Answer]:
    """Hunt a mutant, and yield what is found; the last answer, when the budget is used up, has no find.

    ``compiled``: the rules of this process have been edited already, and only changes of releases are switched here. The
    budget is of processor time, so it is the same on a busy machine; the time that compiling takes does not count.
    """
    switches = () if name == NONE else MUTANTS[name].switches
    if compiled:
        switches = tuple(switch for switch in switches if isinstance(switch, Release))
    played = 0
    with switched(switches) if switches else nullcontext():
        if compiled:
            _, first = next(hunters(seed, 1))
            for steps in ([], schedule.all_steps()):
                first.play(steps)
            first.random()
        began = time.process_time()
        turn = _TURN_COMPILED if compiled else _TURN
        for campaign, hunter in hunters(seed, turn):
            hunter.limit = hunter.played + turn
            while hunter.played < hunter.limit:
                before = hunter.played
                find = hunter.random()
                played += hunter.played - before
                seconds = time.process_time() - began
                if find is not None:
                    yield answer_of(find, campaign, hunter, seconds, played)
                if seconds >= budget_s:
                    yield Answer("", campaign, [], [], seconds, played)
                    return


def answer_of(find: Find, campaign: int, hunter: Hunter, seconds: float, played: int) -> Answer:
    """Return a find of the schedule played last as an answer; shrink it if its cause is not known."""
    text = f"{find.name}.{hunter.cause_of(find)}"
    if text not in KNOWN or hunter.cause_of(find) in BY_STEPS:
        find = hunter.shrink(find)
        text = f"{find.name}.{find.cause}"
    return Answer(text, campaign, [*hunter.keys], [*find.steps], seconds, played)
