"""Keep what a hunt has played and found: schedules, the shortest find of each cause, the states that were led to.

A hunt can be written as JSON values and goes on from them. Hunts of other seeds are added to it; the result depends on the
hunts and their order alone, so it does not matter which process played which of them.
"""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.state import I8
from dispatch_core.hunt.causes import sentence_of
from dispatch_core.hunt.choices import PROMISES
from dispatch_core.hunt.distinct import estimate, new_sketch
from dispatch_core.hunt.promises import OUTCOMES
from dispatch_core.hunt.schedule import describe, parse
from dispatch_core.hunt.search import AnyHunter, Find, Hunter
from dispatch_core.hunt.unkeyed import UnkeyedHunter

#: Keys among which three are chosen.
_MANY_KEYS: Final = 256
#: Finds of one seed that end by the same cause and are shrunk, at most. Others are counted.
SHRUNK_PER_CAUSE: Final = 10


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim of a hunt: promises and steps.

    ``promises``: names of ``choices.PROMISES``; ``also``: further groups of steps; ``pass_over``: causes that are known;
    ``states``: count the states that schedules lead to.
    """

    promises: tuple[str, ...] = tuple(PROMISES)
    also: tuple[str, ...] = ()
    pass_over: tuple[str, ...] = ()
    states: bool = False

    @property
    def wanted(self) -> set[str]:
        """The names of the promises, as ``hunt.promises`` has them."""
        return {name for promise in self.promises for name in PROMISES[promise]}

    def digest(self, profile: Profile, seed: int) -> str:
        """Identify a hunt: it goes on only with the same rules, steps and seed."""
        asked = [sorted(self.wanted), sorted(self.also), sorted(self.pass_over), seed, self.states]
        return f"{profile.digest} {json.dumps(asked)}"


@dataclass(slots=True)
class Group:
    """The shortest find of a cause, with the keys of its schedule, and how often the cause was found."""

    find: Find
    keys: tuple[str, ...]
    times: int = 1

    @property
    def verdict(self) -> str:
        """The promise and the cause, joined by a dot."""
        return f"{self.find.name}.{self.find.cause}"

    @property
    def sentences(self) -> list[str]:
        """The steps in words, with the keys of the schedule."""
        texts = [describe(step) for step in self.find.steps]
        for number, key in enumerate(self.keys, 1):
            texts = [text.replace(f"key k{number} ", f"key {key} ") for text in texts]
        return texts

    @property
    def outcome(self) -> str:
        """The end of the schedule in words."""
        promised = OUTCOMES[self.find.promise].format(entry=self.find.entry)
        return f"then {promised}: {sentence_of(self.find.cause)}"

    def as_json(self) -> dict[str, Any]:
        """Write the group as JSON values."""
        return {
            "promise": self.find.promise,
            "cause": self.find.cause,
            "steps": [describe(step) for step in self.find.steps],
            "entry": self.find.entry,
            "slot": self.find.slot,
            "keys": [*self.keys],
            "found": self.times,
        }

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Group:
        """Read a group; raises ``DispatchAuditError``, ``KeyError`` or ``TypeError`` for what is none."""
        steps = tuple(parse(text) for text in row["steps"])
        find = Find(row["promise"], steps, row["entry"], row["slot"], row["cause"])
        return cls(find, tuple(row["keys"]), row["found"])


@dataclass(frozen=True, slots=True)
class Every:
    """Every schedule of up to ``steps`` steps, as a bounded search has played them, and the distinct states they lead to.

    ``schedules``, ``states``: also those of longer schedules, if it was stopped among them.
    """

    steps: int
    schedules: int
    states: int


@dataclass(slots=True)
class Hunt:
    """The numbers of what was played, and the finds so far.

    ``keys``: sets of keys. ``every``: what was played of a bounded search; ``played`` counts random schedules.
    ``not_shrunk``: finds beyond ``SHRUNK_PER_CAUSE``, by promise and cause as the state shows it.
    """

    groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    passed_over: Counter[str] = field(default_factory=Counter)
    not_shrunk: Counter[str] = field(default_factory=Counter)
    played: int = 0
    steps: int = 0
    keys: int = 0
    seconds: float = 0.0
    sketch: I8 | None = None
    every: Every | None = None

    @classmethod
    def of(cls, aim: Aim) -> Hunt:
        """Return a hunt that has played nothing."""
        return cls(sketch=new_sketch() if aim.states else None)

    @property
    def states(self) -> int | None:
        """The states that the schedules have led to, about; ``None`` = they were not counted."""
        return None if self.sketch is None else estimate(self.sketch)

    def sorted_groups(self) -> list[Group]:
        """List the groups, the shortest schedule first."""
        return sorted(self.groups.values(), key=lambda group: (len(group.find.steps), group.find.group))

    def note(self, hunter: AnyHunter, find: Find, aim: Aim) -> None:
        """Shrink a find, and keep it if it is the shortest of its cause and that is none to pass over."""
        shrunk = hunter.shrink(find)
        if shrunk.cause in aim.pass_over:
            self.passed_over[shrunk.cause] += 1
        else:
            self._keep(Group(shrunk, hunter.keys))

    def note_some(self, hunter: AnyHunter, find: Find, aim: Aim, ends: Counter[str]) -> None:
        """Note the first finds that end by a cause, and count the others; ``ends``: how many there are so far."""
        end = f"{find.name}.{hunter.cause_of(find)}"
        ends[end] += 1
        if ends[end] <= SHRUNK_PER_CAUSE:
            self.note(hunter, find, aim)
        else:
            self.not_shrunk[end] += 1

    def _keep(self, new: Group) -> None:
        group = self.groups.setdefault(new.find.group, new)
        if group is new:
            return
        group.times += new.times
        if len(new.find.steps) < len(group.find.steps):
            group.find, group.keys = new.find, new.keys

    def count(self, hunter: AnyHunter) -> None:
        """Add the numbers of a hunter that is done."""
        self.played += hunter.played
        self.steps += hunter.steps
        self.passed_over += hunter.passed_over

    def add(self, other: Hunt) -> None:
        """Add a hunt of other seeds; of two schedules of one length the earlier one stays."""
        for group in other.groups.values():
            self._keep(Group(group.find, group.keys, group.times))
        self.passed_over += other.passed_over
        self.not_shrunk += other.not_shrunk
        self.played += other.played
        self.steps += other.steps
        self.keys += other.keys
        self.seconds += other.seconds
        if self.sketch is not None and other.sketch is not None:
            np.maximum(self.sketch, other.sketch, out=self.sketch)

    def as_json(self) -> dict[str, Any]:
        """Write the hunt as JSON values."""
        sketch = b"" if self.sketch is None else zlib.compress(self.sketch.tobytes())
        return {
            "schedules": self.played,
            "steps": self.steps,
            "sets_of_keys": self.keys,
            "seconds": self.seconds,
            "passed_over": dict(self.passed_over),
            "not_shrunk": dict(self.not_shrunk),
            "finds": [group.as_json() for group in self.groups.values()],
            "sketch": base64.b64encode(sketch).decode(),
            "every": None if self.every is None else asdict(self.every),
        }

    @classmethod
    def of_json(cls, saved: Mapping[str, Any], aim: Aim) -> Hunt:
        """Read a hunt; raises ``ValueError``, ``KeyError``, ``TypeError`` or ``DispatchAuditError`` for what is none."""
        hunt = cls.of(aim)
        hunt.played, hunt.steps, hunt.keys = saved["schedules"], saved["steps"], saved["sets_of_keys"]
        hunt.seconds = saved["seconds"]
        hunt.passed_over, hunt.not_shrunk = Counter(saved["passed_over"]), Counter(saved["not_shrunk"])
        if hunt.sketch is not None:
            try:
                hunt.sketch[:] = list(zlib.decompress(base64.b64decode(saved["sketch"])))
            except zlib.error as error:
                raise ValueError(str(error)) from error
        hunt.every = None if saved["every"] is None else Every(**saved["every"])
        for row in saved["finds"]:
            group = Group.of_json(row)
            hunt.groups[group.find.group] = group
        return hunt


def hunter_for(profile: Profile, aim: Aim, seed: int, sketch: I8 | None) -> Hunter | UnkeyedHunter:
    """Return the hunter of a seed: Key_Shared with three keys; the same seed gives the same hunter."""
    if profile.is_shared or profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return UnkeyedHunter(profile, seed=seed, wanted=aim.wanted, groups=aim.also, pass_over=aim.pass_over)
    keys = random.Random(seed).sample(range(_MANY_KEYS), 3)  # noqa: S311 - no secret
    return Hunter(
        profile,
        [f"key-{key}" for key in keys],
        seed=seed,
        wanted=aim.wanted,
        groups=aim.also,
        pass_over=aim.pass_over,
        sketch=sketch,
    )


def play_seed(profile: Profile, aim: Aim, seed: int, schedules: int) -> Hunt:
    """Play so many schedules of a seed, and shrink what they find."""
    hunt = Hunt.of(aim)
    hunter = hunter_for(profile, aim, seed, hunt.sketch)
    hunter.limit = schedules
    ends: Counter[str] = Counter()
    while hunter.played < schedules:
        find = hunter.random()
        if find is None:
            continue
        hunt.note_some(hunter, find, aim, ends)
    hunt.count(hunter)
    hunt.keys = 1
    return hunt


def play_every(
    hunt: Hunt, hunter: AnyHunter, aim: Aim, longest: int, goes_on: Callable[[Every], bool] = lambda _: True
) -> None:
    """Play every schedule of up to ``longest`` steps, and shrink what they find; stop early unless ``goes_on`` says so.

    A schedule is not gone on from when it breaks a promise that is wanted, unless its cause is to be passed over.
    """
    search = hunter.bounded_search()
    ends: Counter[str] = Counter()
    is_stopped = False
    while search.length < longest and not is_stopped:
        for ended in search.longer():
            hunt.every = Every(search.length, search.played, search.states)
            if ended is None:
                is_stopped = not goes_on(hunt.every)
                if is_stopped:
                    break
                continue
            find = hunter.found(ended.steps)
            if hunter.is_passed_over(find):
                hunter.passed_over[hunter.cause_of(find)] += 1
                if ended.at_end:
                    search.go_on()
                continue
            hunt.note_some(hunter, find, aim, ends)
    hunt.every = Every(search.length, search.played, search.states)
    hunt.count(hunter)
    hunt.steps += search.steps
