"""The ``broker.conf`` settings that change a dispatch decision: type, default per release, since when they exist.

Every other name that ``broker.conf`` knows (``broker_conf_names.json``: the union of 3.0.0 … 5.0.1) is accepted and listed
as ignored; a name that it does not know is an error, because a misspelt setting would silently mean the default.
Source: ServiceConfiguration of each line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, Final

from dispatch_core.broker.client_settings import CLIENT, OWNERS, SHOWN_AS, client_setting
from dispatch_core.broker.versions import Line, Version, reached
from dispatch_core.errors import ProfileError

Value = int | bool

_INT: Final = (-(2**31), 2**31 - 1)
_LONGEST_SHOWN: Final = 80

#: Settings that only say when a dispatcher reads again, by their ``broker.conf`` names, and their defaults, ms. No rule of a
#: profile has them.
TIMERS: Final[Mapping[str, int]] = {
    "keySharedUnblockingIntervalMs": 10,
    "dispatcherRetryBackoffInitialTimeInMs": 1,
    "dispatcherRetryBackoffMaxTimeInMs": 10,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that the core reads.

    ``since``: first patch release of each line that knows it, empty = every release; ``gone``: first without it;
    ``in_preview``: 4.0.0-preview.1 knows it. ``later``: another default from these releases on; ``earlier``: another default
    before these releases.
    ``least`` … ``most``: the numbers a rule can be derived from.
    """

    name: str
    default: Value
    meaning: str
    since: Mapping[Line, int] = field(default_factory=dict)
    in_preview: bool = True
    gone: Mapping[Line, int] = field(default_factory=dict)
    later: tuple[tuple[Mapping[Line, int], Value], ...] = ()
    earlier: tuple[Mapping[Line, int], Value] | None = None
    least: int = _INT[0]
    most: int = _INT[1]

    def known_to(self, version: Version, *, preview: bool) -> bool:
        """True if the release knows the setting; a value has no effect where it does not."""
        if preview:
            return self.in_preview
        return (not self.since or reached(version, self.since)) and not reached(version, self.gone)

    def default_of(self, version: Version, *, preview: bool) -> Value:
        """Return the release's default."""
        value = self.default
        if self.earlier is not None and not reached(version, self.earlier[0]):
            value = self.earlier[1]
        for lines, later in self.later:
            if not preview and reached(version, lines):
                value = later
        return value

    def read(self, value: object) -> Value:
        """Read a value as ``broker.conf`` or JSON has it (``100``, ``"100"``, ``true``, ``"true"``).

        Raises ``ProfileError`` for another type or a number outside the range.
        """
        if isinstance(self.default, bool):
            if isinstance(value, str) and value.strip().lower() in ("true", "false"):
                return value.strip().lower() == "true"
            if isinstance(value, bool):
                return value
            raise self._refuse(value, "true or false")
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and value.isascii():
            value = int(value) if len(value) <= _LONGEST_SHOWN else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refuse(value, "an integer")
        if not self.least <= value <= self.most:
            raise self._refuse(value, f"an integer from {self.least} to {self.most}")
        return value

    def _refuse(self, value: object, expected: str) -> ProfileError:
        return ProfileError(
            f"setting {self.name} = {str(value)[:_LONGEST_SHOWN]!r}: expected {expected}",
            f"; correct it in the log's header or with --set {self.name}=VALUE",
        )


_RING_FLAG: Final = {(3, 0): 8, (3, 3): 3, (4, 0): 1, (4, 1): 0}
_FROM_4_0: Final = {(4, 0): 0}
_FROM_5_0: Final = {(5, 0): 0}

#: The settings that the core reads, by name.
SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting(
            "activeConsumerFailoverDelayTimeMillis",
            1000,
            "Failover: wait before the cursor rewinds for a new active consumer; 0 or less = at once",
        ),
        Setting(
            "activeConsumerFailoverConsistentHashing",
            False,
            "Failover: choose the active consumer of a partition by a ring too (PIP-392)",
            since=_RING_FLAG,
            in_preview=False,
        ),
        Setting(
            "subscriptionKeySharedUseConsistentHashing",
            True,
            "Key_Shared AUTO_SPLIT: ring instead of splitting ranges (PIP-119)",
            since={(2, 6): 0},  # #6791
            earlier=({(2, 10): 0}, False),  # #13352, PIP-119
        ),
        Setting(
            "subscriptionKeySharedConsistentHashingReplicaPoints",
            100,
            "points of each consumer on the ring",
            least=1,
            most=1_000_000,
        ),
        Setting(
            "subscriptionKeySharedUseClassicPersistentImplementation",
            False,
            "Key_Shared: the dispatcher of 3.x; without effect from 5.0 on",
            since=_FROM_4_0,
            in_preview=False,
            gone=_FROM_5_0,
        ),
        Setting(
            "keySharedLookAheadMsgInReplayThresholdPerConsumer",
            2000,
            "entries in the replay set, per consumer, at which reading ahead stops; 0 or less = no such limit",
            since=_FROM_4_0,
            later=((_FROM_5_0, 4000),),
        ),
        Setting(
            "keySharedLookAheadMsgInReplayThresholdPerSubscription",
            20000,
            "the same for the subscription",
            since=_FROM_4_0,
            later=((_FROM_5_0, 40000),),
        ),
        Setting(
            "subscriptionSharedUseClassicPersistentImplementation",
            False,
            "Shared: the dispatcher of 3.x; without effect from 5.0 on",
            since=_FROM_4_0,
            in_preview=False,
            gone=_FROM_5_0,
        ),
        Setting("dispatcherMaxReadBatchSize", 100, "entries of a read at most", least=1),
        Setting(
            "dispatcherMaxRoundRobinBatchSize",
            20,
            "Shared: messages (3.x, classic) or entries (4.0.4 and later) that a consumer gets in one turn at most",
        ),
        Setting(
            "maxUnackedMessagesPerConsumer", 50000, "unacked messages that block a consumer; 0 or less = off"
        ),
        Setting(
            "maxUnackedMessagesPerSubscription",
            200000,
            "unacked messages that stop normal reads; 0 or less = off",
        ),
        Setting(
            "maxConsumersPerSubscription", 0, "consumers of a subscription at most; 0 or less = no limit"
        ),
        Setting("preciseDispatcherFlowControl", False, "divide permits by the average batch size"),
        Setting(
            "acknowledgmentAtBatchIndexLevelEnabled",
            False,
            "messages of a batch can be acknowledged one by one (PIP-391)",
            later=(({(4, 1): 0}, True),),
        ),
    )
}


@cache
def known_names() -> frozenset[str]:
    """Return every name that ``broker.conf`` or ServiceConfiguration of a covered release has."""
    text = (
        resources.files("dispatch_core.broker").joinpath("broker_conf_names.json").read_text(encoding="utf-8")
    )
    return frozenset(json.loads(text))


def check_name(name: str) -> None:
    """Raise ``ProfileError`` for a name that no covered release's ``broker.conf`` knows.

    It says whose setting the name is, if a client has it, and else names the nearest.

    >>> check_name("keySharedUnblockingIntervalMs")
    """
    if name in known_names():
        return
    own = client_setting(name)
    if own is not None:
        raise ProfileError(
            f"{name[:_LONGEST_SHOWN]!r} is no setting of broker.conf but {of_client(own)}: {SHOWN_AS[OWNERS[own]]}",
            "; leave it out here. To see its effect, change it in the client and record again",
        )
    by_lower = {known.lower(): known for known in (*sorted(OWNERS), *sorted(known_names()))}
    near = get_close_matches(name.strip().lower(), by_lower, n=1, cutoff=0.0)
    nearest = by_lower[near[0]] if near else ""
    raise ProfileError(
        f"{name[:_LONGEST_SHOWN]!r} is no setting of broker.conf"
        + (f"; the nearest is {nearest}" if near else "")
        + (f", {of_client(nearest)}" if nearest in OWNERS and nearest not in known_names() else ""),
        ": correct it in the log's header or in --set",
    )


def of_client(name: str) -> str:
    """Say whose setting a client's is.

    >>> of_client("receiverQueueSize"), of_client("serviceUrl")
    ("a setting of the client's consumer", 'a setting of the client')
    """
    owner = OWNERS[name]
    return "a setting of the client" if owner == CLIENT else f"a setting of the client's {owner}"


def in_force(
    version: Version, config: Mapping[str, Any] | None, *, preview: bool = False
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the values of all ``SETTINGS`` in force, and the given names that change nothing (sorted).

    ``config``: values under their ``broker.conf`` names; absent ones take the release's default. A setting that the release
    does not know yet keeps its default and is listed among the ignored. Raises ``ProfileError``.

    >>> values, ignored = in_force((3, 0, 7), {"activeConsumerFailoverConsistentHashing": True, "clusterName": "eu"})
    >>> values["activeConsumerFailoverConsistentHashing"], ignored
    (False, ('activeConsumerFailoverConsistentHashing', 'clusterName'))
    """
    config = {} if config is None else config
    if not isinstance(config, Mapping):
        raise ProfileError(
            f"the header's config is no table of settings but {str(config)[:_LONGEST_SHOWN]!r}: correct the header"
        )
    values = {name: setting.default_of(version, preview=preview) for name, setting in SETTINGS.items()}
    ignored = []
    for name, value in config.items():
        check_name(name)
        setting = SETTINGS.get(name)
        if setting is None:
            ignored.append(name)
            continue
        read = setting.read(value)
        if setting.known_to(version, preview=preview):
            values[name] = read
        else:
            ignored.append(name)
    return values, tuple(sorted(ignored))


def given(assignments: list[str]) -> dict[str, Value | str]:
    """Parse ``["NAME=VALUE", …]`` of a command line into settings by name; the last one of a name holds.

    Raises ``ProfileError`` for a text of another form, an unknown name or a value no rule can be derived from.

    >>> given(["dispatcherMaxReadBatchSize=16", "clusterName=eu"])
    {'dispatcherMaxReadBatchSize': 16, 'clusterName': 'eu'}
    """
    settings: dict[str, Value | str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ProfileError(
                f"--set {text[:_LONGEST_SHOWN]}: give it as NAME=VALUE, NAME being a setting of broker.conf"
            )
        name = name.strip()
        check_name(name)
        settings[name] = SETTINGS[name].read(value) if name in SETTINGS else value.strip()
    return settings
