"""Hunt several releases and compare them: which promise each breaks, by which cause, and whether that is known.

A *campaign* is divided into chunks that do not depend on each other: so many schedules of one seed under the rules of one
release. Chunks may be played anywhere, in any order. ``compare`` puts their results together in the order of ``chunks``, so
the result depends on the campaign alone.

>>> few = campaign(["4.0.0", "4.2.4"], schedules=1000, seeds=3)
>>> [(chunk.release, chunk.seed, chunk.schedules) for chunk in few.chunks()][:4]
[('4.0.0', 0, 334), ('4.0.0', 1, 333), ('4.0.0', 2, 333), ('4.2.4', 0, 334)]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from dispatch_core.broker import settings as settings_
from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.errors import DispatchAuditError
from dispatch_core.hunt import hunts, zoo
from dispatch_core.hunt.causes import NAMES as CAUSES
from dispatch_core.hunt.choices import ALSO, KEY_SHARED, PROMISES, SUBSCRIPTION_TYPES
from dispatch_core.hunt.hunts import Aim, Group, Hunt
from dispatch_core.hunt.schedule import GROUPS_OF, LIMIT, kind_of

#: Schedules of a release, seeds, and releases of a campaign, at most.
MOST_SCHEDULES: Final = 10**10
MOST_SEEDS: Final = 1_000
MOST_RELEASES: Final = 16
#: Schedules of a release that may be played for its coverage.
MOST_WATCHED: Final = 100_000
#: Characters of a wrong value that a message shows.
_LONGEST_SHOWN: Final = 80
#: Settings that decide who owns a key. An exhibit of the zoo is played with its own, as its keys go with them.
_OF_THE_SELECTOR: Final = frozenset(
    {"subscriptionKeySharedUseConsistentHashing", "subscriptionKeySharedConsistentHashingReplicaPoints"}
)


class CampaignError(DispatchAuditError):
    """A parameter of a campaign is wrong; the message begins with its name."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """So many schedules of one seed, under the rules of one release."""

    release: str
    seed: int
    schedules: int

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.release}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Campaign:
    """The releases, rules and seeds of a hunt. Make it by ``campaign``, which checks it.

    ``schedules``: of each release, divided among ``seeds`` seeds from ``first_seed`` on. ``watched``: schedules of each
    release that are played once more to see which rules they go through (``coverage``).
    """

    releases: tuple[str, ...]
    subscription_type: str
    allow_out_of_order: bool
    settings: Mapping[str, Any]
    aim: Aim
    schedules: int
    first_seed: int
    seeds: int
    watched: int

    def profile(self, release: str) -> Profile:
        """Return the rules of a release."""
        return resolve(
            release,
            self.settings,
            subscription_type=self.subscription_type,
            partition_index=0,
            allow_out_of_order=self.allow_out_of_order,
        )

    def chunks(self) -> list[Chunk]:
        """List the chunks, release by release, seed by seed; those without schedules are left out."""
        each, more = divmod(self.schedules, self.seeds)
        sizes = [each + (at < more) for at in range(self.seeds)]
        return [
            Chunk(release, self.first_seed + at, size)
            for release in self.releases
            for at, size in enumerate(sizes)
            if size
        ]

    def watched_seeds(self) -> tuple[range, int]:
        """Return the seeds whose first schedules are played for the coverage, and how many schedules of each."""
        seeds = max(1, min(self.seeds, self.schedules, self.watched))
        each = min(-(-self.watched // seeds), self.schedules // seeds)
        return range(self.first_seed, self.first_seed + seeds), each

    def play(self, chunk: Chunk) -> Hunt:
        """Play a chunk."""
        return hunts.play_seed(self.profile(chunk.release), self.aim, chunk.seed, chunk.schedules)

    def digest(self, chunk: Chunk) -> str:
        """Identify what a chunk plays."""
        return f"{self.aim.digest(self.profile(chunk.release), chunk.seed)} {chunk.schedules}"

    def as_json(self) -> dict[str, Any]:
        """Write the campaign as JSON values."""
        return {
            "releases": [*self.releases],
            "subscription_type": self.subscription_type,
            "allow_out_of_order": self.allow_out_of_order,
            "settings": dict(self.settings),
            "promises": [*self.aim.promises],
            "also": [*self.aim.also],
            "pass_over": [*self.aim.pass_over],
            "states": self.aim.states,
            "schedules": self.schedules,
            "first_seed": self.first_seed,
            "seeds": self.seeds,
            "watched": self.watched,
        }

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Campaign:
        """Read what ``as_json`` wrote."""
        of_aim = {name: fields[name] for name in ("promises", "also", "pass_over")}
        aim = Aim(**{name: tuple(values) for name, values in of_aim.items()}, states=fields["states"])
        rest = {name: value for name, value in fields.items() if name not in (*of_aim, "states", "releases")}
        return cls(releases=tuple(fields["releases"]), aim=aim, **rest)


def campaign(
    releases: Iterable[str],
    *,
    subscription_type: str = KEY_SHARED,
    allow_out_of_order: bool = False,
    assignments: Iterable[str] = (),
    promises: Iterable[str] = (),
    also: Iterable[str] = (),
    pass_over: Iterable[str] = (),
    states: bool = False,
    schedules: int = 2_000_000,
    first_seed: int = 0,
    seeds: int = 10,
    watched: int = 2_000,
) -> Campaign:
    """Make a campaign; ``assignments``: ``NAME=VALUE`` of ``broker.conf``; no ``promises`` = all of them.

    Raises ``CampaignError`` that begins with the name of the wrong parameter.
    """
    named = tuple(release.strip() for release in releases)
    _check(1 <= len(named) <= MOST_RELEASES, "releases", f"give 1 to {MOST_RELEASES} releases, such as 4.2.4")
    _check(len({*named}) == len(named), "releases", "one is named twice")
    _check_choices("subscription_type", (subscription_type,), SUBSCRIPTION_TYPES)
    aim = Aim(tuple(promises) or tuple(PROMISES), tuple(also), tuple(pass_over), states)
    _check_choices("promises", aim.promises, tuple(PROMISES))
    _check_choices("also", aim.also, ALSO)
    for group in aim.also:
        known = group in GROUPS_OF[subscription_type]
        _check(known, "also", f"{group} are steps of other types, not for {subscription_type}")
    _check_choices("pass_over", aim.pass_over, CAUSES)
    if subscription_type != KEY_SHARED:
        _check(not states, "states", f"they are counted for Key_Shared, not for {subscription_type}")
    for name, value, least, most in (
        ("schedules", schedules, 1, MOST_SCHEDULES),
        ("first_seed", first_seed, 0, 2**31),
        ("seeds", seeds, 1, MOST_SEEDS),
        ("watched", watched, 0, MOST_WATCHED),
    ):
        _check(least <= value <= most, name, f"{value}: give a number from {least:,} to {most:,}")
    try:
        given = settings_.given(list(assignments))
    except DispatchAuditError as error:
        raise CampaignError(f"settings: {error}; nothing was played") from error
    asked = Campaign(
        named, subscription_type, allow_out_of_order, given, aim, schedules, first_seed, seeds, watched
    )
    for release in named:
        try:
            asked.profile(release)
        except DispatchAuditError as error:
            raise CampaignError(
                f"releases: {release[:_LONGEST_SHOWN]!r}: {error}; nothing was played"
            ) from error
    return asked


def _check(right: bool, name: str, text: str) -> None:
    if not right:
        raise CampaignError(f"{name}: {text}; nothing was played")


def _check_choices(name: str, values: Sequence[str], choices: Sequence[str]) -> None:
    for value in values:
        _check(
            value in choices, name, f"{value[:_LONGEST_SHOWN]!r} is not one of {', '.join(sorted(choices))}"
        )


# --- the comparison ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A cause that was found in a release, as an exhibit of the zoo, and the exhibit that has it already, if one does."""

    release: str
    group: Group
    exhibit: zoo.Exhibit
    known: zoo.Exhibit | None

    @property
    def steps(self) -> int:
        """The number of steps of the shortest schedule."""
        return len(self.group.find.steps)


def merged(asked: Campaign, played: Mapping[Chunk, Hunt]) -> dict[str, Hunt]:
    """Add the hunts of all chunks; returns release → hunt."""
    found = {release: Hunt.of(asked.aim) for release in asked.releases}
    for chunk in asked.chunks():
        found[chunk.release].add(played[chunk])
    return found


def compare(asked: Campaign, by_release: Mapping[str, Hunt]) -> dict[str, list[Found]]:
    """Compare releases; returns verdict (promise and cause, joined by a dot) → what was found in each, the shortest first.

    What is new comes first.
    """
    rows: dict[str, list[Found]] = {}
    for release in asked.releases:
        for group in by_release[release].sorted_groups():
            exhibit = exhibit_of(asked, release, group)
            known = known_as(asked, release, group.verdict)
            rows.setdefault(group.verdict, []).append(Found(release, group, exhibit, known))
    for cells in rows.values():
        cells.sort(key=lambda cell: cell.steps)  # of one length: in the order of the releases
    return dict(
        sorted(
            rows.items(),
            key=lambda row: (all(cell.known for cell in row[1]), row[1][0].steps, row[0]),
        )
    )


def exhibit_of(asked: Campaign, release: str, group: Group) -> zoo.Exhibit:
    """Return a find as an exhibit of the zoo, with the verdict of every known release."""
    exhibit = zoo.Exhibit(
        name=f"{group.verdict}-{release}",
        title=f"{group.verdict} of {release}",
        links=(),
        kind="fault",
        text=f"Found by a hunt of {release} and not described yet: {group.outcome}.",
        subscription_type=asked.subscription_type,
        settings={name: value for name, value in asked.settings.items() if isinstance(value, bool | int)},
        allow_out_of_order=asked.allow_out_of_order,
        keys=group.keys,
        steps=group.find.steps,
        verdicts={},
    )
    found = zoo.verdicts(exhibit)
    own = {group.verdict: found.get(group.verdict, [])}
    verdicts = {name: tuple(ranges) for name, ranges in {**own, **found}.items() if name != zoo.KEPT}
    return dataclasses.replace(exhibit, verdicts=verdicts)


def known_as(asked: Campaign, release: str, verdict: str) -> zoo.Exhibit | None:
    """Return the exhibit of the zoo that breaks the same promise by the same cause under the rules that were hunted.

    Its schedule is played with its own keys, so with its own settings of the selector. Of its other settings those are taken
    that were hunted, with its own values: a fault that needs a limit is known where there is one, and only there. So is one
    that needs a limit of a policy: where policies were hunted.
    ``starved`` is ``stuck`` while a consumer hangs, so both count as the same.
    """
    wanted = _as_stuck(verdict)
    for exhibit in known_exhibits():
        same = (exhibit.subscription_type, exhibit.allow_out_of_order) == (
            asked.subscription_type, asked.allow_out_of_order,
        )  # fmt: skip
        sets_limit = any(kind_of(step) == LIMIT for step in exhibit.steps)
        if not same or (sets_limit and "policies" not in asked.aim.also):
            continue
        if wanted not in map(_as_stuck, exhibit.verdicts):
            continue
        own = {
            name: value
            for name, value in exhibit.settings.items()
            if name in _OF_THE_SELECTOR or asked.settings.get(name)
        }
        here = dataclasses.replace(exhibit, settings={**asked.settings, **own})
        if _as_stuck(zoo.verdict(here, release)) == wanted:
            return exhibit
    return None


def _as_stuck(verdict: str) -> str:
    return verdict.replace("starved.", "stuck.")


@cache
def known_exhibits() -> tuple[zoo.Exhibit, ...]:
    """Return the exhibits of the zoo."""
    return zoo.exhibits()


def results(
    asked: Campaign,
    by_release: Mapping[str, Hunt],
    rows: Mapping[str, Sequence[Found]],
    watched: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Write the comparison as JSON values: the campaign, its releases, and a row for each promise and cause.

    ``watched``: release → the functions that a sample went through, as ``coverage.Function.as_json``.
    """
    return {
        "asked": asked.as_json(),
        "releases": [
            {
                **_release(asked, release, by_release[release]),
                "coverage": _coverage(asked, watched.get(release)),
            }
            for release in asked.releases
        ],
        "finds": [_row(asked, by_release, verdict, cells) for verdict, cells in rows.items()],
    }


def _release(asked: Campaign, release: str, hunt: Hunt) -> dict[str, Any]:
    return {
        "release": release,
        "rules": asked.profile(release).name,
        "schedules": hunt.played,
        "steps": hunt.steps,
        "sets_of_keys": hunt.keys,
        "states": hunt.states,
        "passed_over": dict(sorted(hunt.passed_over.items())),
        "not_shrunk": dict(sorted(hunt.not_shrunk.items())),
    }


def _coverage(asked: Campaign, functions: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Count by module which functions were called and which branches were gone through; ``None`` = nothing was watched."""
    if functions is None:
        return None
    modules: dict[str, dict[str, int]] = {}
    for function in functions:
        of_module = modules.setdefault(
            function["module"], {"functions": 0, "called": 0, "branches": 0, "reached": 0}
        )
        of_module["functions"] += 1
        of_module["called"] += function["calls"] > 0
        of_module["branches"] += function["branches"]
        of_module["reached"] += function["reached"]
    seeds, each = asked.watched_seeds()
    return {"schedules": len(seeds) * each, "modules": modules, "functions": [*functions]}


def _row(
    asked: Campaign, by_release: Mapping[str, Hunt], verdict: str, cells: Sequence[Found]
) -> dict[str, Any]:
    shortest = cells[0]
    found = {cell.release: cell for cell in cells}
    return {
        "verdict": verdict,
        "promise": shortest.group.find.name,
        "cause": shortest.group.find.cause,
        "new": any(cell.known is None for cell in cells),
        "keys": [*shortest.group.keys],
        "steps": shortest.group.sentences,
        "outcome": shortest.group.outcome,
        "breaks": {name: [*ranges] for name, ranges in shortest.exhibit.verdicts.items()},
        "releases": {
            release: _found(found[release])
            if release in found
            else {
                "found": False,
                "schedules": by_release[release].played,
                "shortest_played": _played(asked, shortest, release),
            }
            for release in asked.releases
        },
    }


def _found(cell: Found) -> dict[str, Any]:
    known = cell.known
    return {
        "found": True,
        "steps": cell.steps,
        "times": cell.group.times,
        "known": None
        if known is None
        else {"exhibit": known.name, "title": known.title, "links": [*known.links]},
        "file": f"finds/{cell.exhibit.name}.toml",
    }


def _played(asked: Campaign, shortest: Found, release: str) -> str:
    """Play the shortest schedule of another release here; returns the verdict."""
    here = dataclasses.replace(shortest.exhibit, settings=asked.settings)
    return zoo.verdict(here, release)


def new_finds(result: Mapping[str, Any]) -> list[str]:
    """List the finds of ``results`` that no exhibit has: the release, and which promise breaks by which cause.

    >>> cell = {"found": True, "known": None, "steps": 7}
    >>> new_finds({"finds": [{"verdict": "stuck.no_read", "releases": {"4.2.4": cell}}]})
    ['4.2.4: stuck.no_read in 7 steps']
    """
    return [
        f"{release}: {row['verdict']} in {cell['steps']} steps"
        for row in result["finds"]
        for release, cell in row["releases"].items()
        if cell["found"] and cell["known"] is None
    ]
