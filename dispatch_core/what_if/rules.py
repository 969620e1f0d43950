"""Rules for a simulation: releases and settings of a command line, or names such as ``4.2.4-classic-ch``.

A name gives release and variant. Without a release, the log's own (or ``--broker-version``) is used:

* Key_Shared: ``ch``, ``range`` (the release's dispatcher with consistent hashing or with split ranges), ``classic-ch``,
  ``classic-range`` (the dispatcher of 3.x in 4.x);
* Failover: ``modulo``, ``ring`` (PIP-392).

Selectors and ordering rules that no release has (``plugins``) follow a release, a variant or nothing: ``rate-split``,
``4.2.4-range+rate-split``, ``ch+per-key-position``.
Ranges that clients announce stand in the place of a variant: ``node-ranges`` (equal), ``node-ranges-100`` (100 points each).
A proposal (``proposals.catalogue``) stands in the place of a variant: ``pip-474``, ``4.2.4-pip-493``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from dispatch_core.broker.profiles import NEWEST_KNOWN, Dispatcher, FailoverRule, OrderingRule, Profile
from dispatch_core.broker.settings import SETTINGS, TIMERS, Value
from dispatch_core.broker.versions import PREVIEW_PIP_282, parse_version, text_of
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type, with_overrides
from dispatch_core.simulation.scenario import MOST_PRIORITY_LEVEL
from dispatch_core.what_if.client_changes import (
    AS_RECORDED,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    ClientChanges,
    changes_given,
    needed_by,
)
from dispatch_core.what_if.client_ranges import STOP_US, ClientRanges
from dispatch_core.what_if.plugged_run import check as check_plugged
from dispatch_core.what_if.plugins import NOTHING, Plugged, find
from dispatch_core.what_if.plugins import names as plugin_names
from dispatch_core.what_if.proposals.catalogue import PROPOSALS, Proposal, proposal_named

Settings = Mapping[str, Value | str]
Priorities = Mapping[str, int]

#: Stands for all consumers whose name is not given.
EVERYBODY: Final = "*"

_CONSISTENT: Final = "subscriptionKeySharedUseConsistentHashing"
_CLASSIC: Final = "subscriptionKeySharedUseClassicPersistentImplementation"
_RING: Final = "activeConsumerFailoverConsistentHashing"
_SHARED_CLASSIC: Final = "subscriptionSharedUseClassicPersistentImplementation"

#: Variant → the settings that make it.
VARIANTS: Final[dict[str, dict[str, bool]]] = {
    "ch": {_CONSISTENT: True, _CLASSIC: False},
    "range": {_CONSISTENT: False, _CLASSIC: False},
    "classic-ch": {_CONSISTENT: True, _CLASSIC: True},
    "classic-range": {_CONSISTENT: False, _CLASSIC: True},
    "modulo": {_RING: False},
    "ring": {_RING: True},
    "shared": {_SHARED_CLASSIC: False},
    "classic-shared": {_SHARED_CLASSIC: True},
}
#: Ranges that clients announce; the number of points of each.
_NODE_RANGES: Final = re.compile(r"node-ranges(?:-([1-9][0-9]{0,4}))?$")
_KEY_SHARED: Final = ("ch", "range", "classic-ch", "classic-range")
_FAILOVER: Final = ("modulo", "ring")
_SHARED: Final = ("shared", "classic-shared")
#: Releases of the matrix beside the log's own, one for each rule: the read position of 3.x, PIP-282, draining hashes.
_RELEASES: Final = ("3.0.17", PREVIEW_PIP_282, "4.2.4")


#: Default number of simulations for a prediction.
SEEDS: Final = 5


class RuleNameError(DispatchAuditError):
    """A name of no known rules."""


class PriorityError(DispatchAuditError):
    """A priority level that no consumer can have, or of no consumer."""


@dataclass(frozen=True, slots=True)
class CustomRules:
    """Rules that no release has.

    ``client_ranges``: clients announce ranges of their own (STICKY). ``plugged``: a selector or ordering rule.
    """

    client_ranges: ClientRanges | None = None
    plugged: Plugged = NOTHING


#: The rules of a release and nothing else.
NO_CUSTOM: Final = CustomRules()


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules as differences from the recorded ones: release (``None`` = the recorded one) and settings.

    ``priorities``: priority levels of consumers by name, instead of the recorded ones; ``EVERYBODY`` stands for those that
    are not named. ``proposal``: rules that no release has, on top of these.
    """

    name: str
    broker_version: str | None = None
    settings: Settings = field(default_factory=dict)
    priorities: Priorities = field(default_factory=dict)
    clients: ClientChanges = AS_RECORDED
    proposal: Proposal | None = None
    custom: CustomRules = NO_CUSTOM

    @property
    def beside_profile(self) -> tuple[Settings, Priorities, Proposal | None, CustomRules, ClientChanges]:
        """All that a simulation depends on beside the profile."""
        return self.timers, self.priorities, self.proposal, self.custom, self.clients.of_load()

    @property
    def timers(self) -> Settings:
        """The settings that are timers of the simulated dispatcher and no rules."""
        return {name: value for name, value in self.settings.items() if name in TIMERS}

    def applied_to(self, log: DispatcherLog) -> DispatcherLog:
        """The log with these rules in its header, and these clients."""
        return self.clients.applied_to(with_overrides(log, self.broker_version, self.settings))

    def profile_for(self, log: DispatcherLog) -> Profile:
        """The profile of the log's subscription with these rules.

        Raises ``ProfileError``, and ``UnsupportedRuleError`` for a proposal that does not build on them.
        """
        mode = None if self.custom.client_ranges is None else "STICKY"
        profile = profile_of(self.applied_to(log), mode)
        if self.proposal is not None:
            self.proposal.check(profile)
        if self.custom.plugged:
            check_plugged(profile, self.custom.plugged)
        return profile


#: The rules that the log was recorded under.
RECORDED: Final = RuleSet("as recorded")


def named(
    name: str,
    broker_version: str | None = None,
    settings: Settings | None = None,
    *,
    stop_us: int = STOP_US,
) -> RuleSet:
    """The rules of a name, added to ``settings``; ``broker_version`` applies if the name has no release.

    ``stop_us``: how long nodes with ranges of their own are all stopped when one is added or removed.

    Raises ``RuleNameError``, and ``ProfileError`` for a release that cannot be parsed.

    >>> named("3.0.17-range").broker_version, named("ring").settings
    ('3.0.17', {'activeConsumerFailoverConsistentHashing': True})
    >>> named("4.2.4-pip-493").broker_version, named("pip-493").proposal.title
    ('4.2.4', 'PIP-493')
    """
    text = name.strip().lower()
    release, found, _ = text.partition("pip-")
    proposal = proposal_named(text.removeprefix(release)) if found else None
    if proposal is not None and _is_release(release):
        return RuleSet(
            text,
            _version_in(release) or broker_version,
            {_CLASSIC: False, **proposal.settings, **(settings or {})},
            proposal=proposal,
        )
    known, custom = {**VARIANTS}, NO_CUSTOM
    if ranges := _NODE_RANGES.search(text):
        known[ranges[0]] = {}
        custom = CustomRules(ClientRanges(None if ranges[1] is None else int(ranges[1]), stop_us))
    whole = text
    text, plugged = _with_plugins(text)
    of_plugins: dict[str, Value | str] = {}
    if plugged:
        known[""] = {}
        of_plugins = {_CLASSIC: False, **({_CONSISTENT: False} if plugged.selector else {})}
        custom = replace(custom, plugged=plugged)
    variant = next((word for word in sorted(known, key=len, reverse=True) if text.endswith(word)), None)
    release = text.removesuffix(variant or "")
    if variant is None or not _is_release(release):
        near = get_close_matches(text, [*VARIANTS, *PROPOSALS, *plugin_names()], n=1, cutoff=0.0)
        raise RuleNameError(
            f"--rules {name[:80]}: give VARIANT or RELEASE-VARIANT, such as 4.2.4-ch; variants are "
            f"{', '.join(VARIANTS)}, node-ranges, node-ranges-POINTS, {', '.join(plugin_names())}, and the proposals "
            f"{', '.join(PROPOSALS)}" + (f"; the nearest is {near[0]}" if near else "")
        )
    version = _version_in(release) or broker_version
    given = {**(settings or {}), **known[variant], **of_plugins}
    clients = needed_by(_type_of(variant)) if variant in VARIANTS else AS_RECORDED
    return RuleSet(whole, version, given, clients=clients, custom=custom)


def _type_of(variant: str) -> str:
    """Return the subscription type that a variant of the rules is about."""
    if variant in _SHARED:
        return SHARED
    return FAILOVER if variant in _FAILOVER else KEY_SHARED


def _with_plugins(text: str) -> tuple[str, Plugged]:
    """Take the names of plug-ins off the end of a name of rules.

    >>> _with_plugins("4.2.4-rate-split+per-key-position")
    ('4.2.4-', Plugged(selector='rate-split', ordering='per-key-position'))
    >>> _with_plugins("ch")
    ('ch', Plugged(selector='', ordering=''))
    """
    first, *others = text.split("+")
    found = [plugged for word in others if (plugged := find(word)) is not None]
    if len(found) < len(others):
        return text, Plugged()
    own = next((word for word in sorted(plugin_names(), key=len, reverse=True) if first.endswith(word)), None)
    if own is not None and (plugged := find(own)) is not None and _is_release(first.removesuffix(own)):
        first = first.removesuffix(own)
        found.insert(0, plugged)
    selectors = [plugged.selector for plugged in found if plugged.selector]
    rules = [plugged.ordering for plugged in found if plugged.ordering]
    if not found or len(selectors) > 1 or len(rules) > 1:
        return text, Plugged()
    return first, Plugged("".join(selectors), "".join(rules))


def _is_release(text: str) -> bool:
    """True for what may stand before the name of rules: nothing, or a release and a hyphen."""
    return not text or (text.endswith("-") and text[0] in "v0123456789")


def _version_in(release: str) -> str | None:
    """Return the version before a name; None for none. Raises ``ProfileError`` for one that cannot be parsed."""
    version = release.removesuffix("-") or None
    if version is not None:
        parse_version(version)
    return version


def asked_for(
    names: Sequence[str],
    broker_version: str | None,
    settings: Settings,
    *,
    matrix: bool,
    stop_us: int = STOP_US,
) -> list[RuleSet]:
    """The rules that a command line names, without those of ``matrix``, which depend on the log (``matrix_for``)."""
    found = [named(name, broker_version, settings, stop_us=stop_us) for name in names]
    if not found and not matrix:
        if broker_version is None and not settings:
            return [RECORDED]
        given = [] if broker_version is None else [broker_version]
        given += [f"{name}={str(value).lower()}" for name, value in settings.items()]
        found = [RuleSet(" ".join(given), broker_version, settings)]
    return found


def priorities_given(texts: Sequence[str]) -> dict[str, int]:
    """Read priority levels as a command line gives them: ``NAME=N``, ``*=N`` for all others. Raises ``PriorityError``.

    >>> priorities_given(["worker-1=0", "*=2"])
    {'worker-1': 0, '*': 2}
    """
    found: dict[str, int] = {}
    for text in texts:
        name, sign, level = text.rpartition("=")
        if not (
            sign and name and level.isascii() and level.isdigit() and int(level[:12]) <= MOST_PRIORITY_LEVEL
        ):
            raise PriorityError(
                f"--priority-level {text[:80]}: give NAME=N with a level from 0 (the highest) to {MOST_PRIORITY_LEVEL}, "
                f"or {EVERYBODY}=N for all other consumers"
            )
        found[name] = int(level[:12])
    return found


def with_priorities(rules: RuleSet, priorities: Priorities) -> RuleSet:
    """Return rules under which consumers have these priority levels; its name says so."""
    if not priorities:
        return rules
    levels = " ".join(f"priority:{name}={level}" for name, level in priorities.items())
    name = levels if rules is RECORDED else f"{rules.name} {levels}"
    return replace(rules, name=name, priorities=priorities)


def with_clients(rules: RuleSet, texts: Sequence[str]) -> RuleSet:
    """Return rules with other settings of the consumers (``client_changes.changes_given``); its name says so."""
    if not texts:
        return rules
    clients = changes_given(texts, rules.clients)
    given = " ".join(f"client:{text}" for text in texts)
    return replace(rules, name=given if rules is RECORDED else f"{rules.name} {given}", clients=clients)


def matrix_for(log: DispatcherLog, broker_version: str | None, settings: Settings) -> list[RuleSet]:
    """The rules of the log's release (or ``broker_version``) and of the releases that changed them.

    If several names give the same rules for this subscription, the first is kept: STICKY has no choice of selector, and a
    topic without partitions has no modulo. Raises ``ProfileError``.
    """
    release = broker_version or log.header.get("broker_version")
    releases = [release, *_RELEASES, text_of(NEWEST_KNOWN)] if release else list(_RELEASES)
    kind = subscription_type(log)
    variants = _SHARED if kind == SHARED else _FAILOVER if kind in ("Failover", "Exclusive") else _KEY_SHARED
    found: dict[tuple[object, ...], RuleSet] = {}
    for version in dict.fromkeys(str(text).strip() for text in releases):
        for variant in variants:
            # STICKY stays STICKY: a matrix compares releases and settings for the recorded clients
            rules = replace(named(f"{version}-{variant}", None, settings), clients=AS_RECORDED)
            profile = rules.profile_for(log)
            if _is(profile, variant):
                found.setdefault(_kind(profile), _fitting(rules, profile, version))
    return list(found.values())


def _fitting(rules: RuleSet, profile: Profile, version: str) -> RuleSet:
    """The rules under a name without a selector, if the subscription has none to choose (STICKY)."""
    if profile.key_shared_mode == "STICKY":
        classic = (
            profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC and "classic_dispatchers" in profile.changes
        )
        return replace(rules, name=f"{version}-classic" if classic else version)
    return rules


def same_rules(profile: Profile, other: Profile) -> bool:
    """True if two profiles have the same release, name and settings."""
    return (profile.broker_version, profile.name, profile.settings) == (
        other.broker_version,
        other.name,
        other.settings,
    )


def without_effect(rules: RuleSet, profile: Profile) -> tuple[str, ...]:
    """The settings of ``rules`` that change nothing under ``profile``, each with the reason, in sentences."""
    found = []
    single = profile.dispatcher is Dispatcher.SINGLE_ACTIVE
    for name in rules.settings:
        known = SETTINGS.get(name)
        if name in TIMERS:
            found += _timer_without_effect(name, rules.settings[name], profile)
        elif known is None:
            found.append(f"{name} changes no decision that is simulated")
        elif name in profile.ignored_settings:
            found.append(f"{name} has no effect in {profile.broker_version}")
        elif name.startswith("activeConsumerFailover") and not single:
            found.append(f"{name} has no effect on a subscription with several consumers at a time")
        elif name.startswith(("subscriptionKeyShared", "keyShared")) and (single or profile.is_shared):
            kind = "Shared subscription" if profile.is_shared else "subscription with one active consumer"
            found.append(f"{name} has no effect on a {kind}")
        elif name == _RING and profile.partition_index < 0:
            found.append(f"{name} has no effect on a topic without partitions: it always uses the ring")
    if rules.priorities and not (single or profile.is_shared):
        found.append("priority levels change nothing but the order in which Key_Shared lists its consumers")
    return tuple(found)


def _timer_without_effect(name: str, value: Value | str, profile: Profile) -> list[str]:
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        return [f"{name}={text[:40]} is no number of milliseconds: its default of {TIMERS[name]} is taken"]
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return [f"{name} has no effect on a subscription with one active consumer"]
    if profile.dispatcher in (Dispatcher.KEY_SHARED_CLASSIC, Dispatcher.SHARED_CLASSIC):
        return [f"{name} has no effect on the dispatcher of 3.x"]
    if name == "keySharedUnblockingIntervalMs" and profile.ordering is not OrderingRule.DRAINING_HASHES:
        return [f"{name} has no effect in {profile.broker_version}"]
    return []


def _is(profile: Profile, variant: str) -> bool:
    """True if the release has the variant; otherwise its profile would be another variant under a wrong name."""
    if variant in _FAILOVER:
        return profile.failover is FailoverRule(variant)
    if variant.startswith("classic"):
        classic = Dispatcher.SHARED_CLASSIC if profile.is_shared else Dispatcher.KEY_SHARED_CLASSIC
        return "classic_dispatchers" in profile.changes and profile.dispatcher is classic
    return True


def _kind(profile: Profile) -> tuple[object, ...]:
    """The key by which profiles of a matrix are distinct: the rules, and for Key_Shared the release.

    Failover's rules are the same in all releases that have them.
    """
    return (
        profile.dispatcher,
        profile.ordering,
        profile.consistent_hashing,
        profile.failover,
        profile.broker_version if profile.dispatcher is not Dispatcher.SINGLE_ACTIVE else None,
    )
