"""Advise the smallest change that would have prevented the order violations of a log.

Changes are tried from small to large: a bug-fix release of the same line, one setting of the broker, another subscription
policy of the consumers, a newer line, a newer line with one setting. Each is a prediction of ``compare``: its load is
simulated under the changed rules. Advised is the first that is predicted, surely enough, to have no more violations than are
tolerated, that leaves no more entries unsent, and that takes away what lets the violations happen (``order_faults``); then
the first of each other kind, as alternatives. Where nothing is known to let them happen, the simulations have to show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dispatch_core.audit.promises.promise import FAIL
from dispatch_core.audit.sentences.order_faults import order_fault
from dispatch_core.broker.profiles import Dispatcher, Profile, known_releases
from dispatch_core.broker.versions import parse_version, text_of
from dispatch_core.errors import DispatchAuditError, ProfileError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.what_if.client_changes import AUTO_SPLIT, KEY_SHARED, ClientChanges
from dispatch_core.what_if.compare import NO_VIOLATION, Case, OrderLimits, Row, case_of, predicted_for
from dispatch_core.what_if.measure import Measures
from dispatch_core.what_if.rules import RECORDED, RuleSet, same_rules

#: Kinds of changes, as they are tried.
PATCH: Final = "release of the same line"
SETTING: Final = "setting"
CLIENT: Final = "client setting"
LINE: Final = "newer line"
LINE_AND_SETTING: Final = "newer line and setting"
KINDS: Final = (PATCH, SETTING, CLIENT, LINE, LINE_AND_SETTING)
#: A page or an alert is not kept waiting for a log with more lines of events: about a minute of simulation.
MOST_EVENTS: Final = 100_000
#: What is advised comes true at least so often.
SURE_ENOUGH: Final = 0.9

_CONSISTENT: Final = "subscriptionKeySharedUseConsistentHashing"
_CLASSIC: Final = "subscriptionKeySharedUseClassicPersistentImplementation"
_RING: Final = "activeConsumerFailoverConsistentHashing"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of release, settings or clients. ``said``: what to do, as an imperative."""

    kind: str
    said: str
    rules: RuleSet


@dataclass(frozen=True, slots=True)
class Tried:
    """A change, its prediction, and the reason why it is not advised; ``None`` = it prevents the violations."""

    change: Change
    row: Row
    against: str | None

    @property
    def probability(self) -> float:
        """Return the probability of the prediction."""
        return 0.0 if self.row.confidence is None else self.row.confidence.probability


@dataclass(frozen=True, slots=True)
class Advice:
    """The changes that would have prevented what was recorded, the smallest first, and those that would not have.

    ``problem``: why nothing could be tried; ``None`` = it could, or nothing is to be prevented.
    """

    recording: str
    cluster: str
    topic: str
    subscription: str
    incarnation: int
    recorded: Measures | None
    tolerated: OrderLimits
    prevents: tuple[Tried, ...] = ()
    rejected: tuple[Tried, ...] = ()
    problem: str | None = None

    @property
    def needed(self) -> bool:
        """True if the recording has more order violations than are tolerated."""
        return self.recorded is not None and not self.tolerated.allow(self.recorded)


def changes_for(log: DispatcherLog) -> list[Change]:
    """The changes to try for a log, the smallest first; rules that are the recorded ones are left out.

    Raises ``ProfileError`` for a log whose rules are not known.
    """
    recorded = profile_of(log)
    found: list[Change] = []
    seen = [recorded]
    for change in _all_changes(recorded):
        try:
            profile = change.rules.profile_for(log)
        except ProfileError:
            continue  # a release without this setting
        if not any(_alike(profile, other) for other in seen):
            seen.append(profile)
            found.append(change)
    return found


def advice(
    log: DispatcherLog,
    seeds: Sequence[int],
    tolerated: OrderLimits = NO_VIOLATION,
    *,
    alternatives: bool = True,
    from_us: int | None = None,
) -> Advice:
    """Try changes until one prevents the recorded order violations; with ``alternatives`` one of each kind, if there is.

    ``from_us``: count only what happens from this time on (``compare.case_of``).

    A log without more violations than are tolerated is not simulated.
    """
    name = (log.recording, log.cluster, log.topic, log.subscription, log.incarnation)
    try:
        case = case_of(log, from_us)
        changes = changes_for(log)
    except DispatchAuditError as error:
        return Advice(*name, None, tolerated, problem=str(error))
    known = Advice(*name, case.recorded, tolerated)
    if not known.needed:
        return known
    prevents: list[Tried] = []
    rejected: list[Tried] = []
    for tried in _tried(log, case, changes, seeds, tolerated, prevents, alternatives=alternatives):
        (prevents if tried.against is None else rejected).append(tried)
    return replace(known, prevents=tuple(prevents), rejected=tuple(rejected))


def _tried(
    log: DispatcherLog,
    case: Case,
    changes: Sequence[Change],
    seeds: Sequence[int],
    tolerated: OrderLimits,
    prevents: Sequence[Tried],
    *,
    alternatives: bool,
) -> Iterator[Tried]:
    """Predict one change after the other; a kind of which one prevents the violations is passed over."""
    predicted = predicted_for(log, case, seeds)
    fault = order_fault(profile_of(log))
    for change in changes:
        kinds = {tried.change.kind for tried in prevents}
        kinds |= {LINE_AND_SETTING} if LINE in kinds else set()  # the setting is not needed then
        if change.kind in kinds or (kinds and not alternatives):
            continue
        row = replace(predicted(change.rules), tolerated=tolerated)
        stays = fault is not None and order_fault(change.rules.profile_for(log)) == fault
        yield Tried(change, row, against(row, fault, stays=stays))


def against(row: Row, fault: str | None, *, stays: bool) -> str | None:
    """Return the reason why a change with this prediction is not advised; ``None`` = it is.

    ``fault``: what lets the violations happen; ``None`` = not known. ``stays``: it does so under the change, too.
    """
    confidence, simulated = row.confidence, row.simulated
    if confidence is None or simulated is None or row.recorded is None:
        return row.problem or "nothing is predicted"
    if row.verdict == FAIL:
        return f"{simulated.order_violations} order violations are predicted"
    if stays:
        return f"{fault}, and that stays so"
    if confidence.probability < SURE_ENOUGH:
        return f"too unsure: {confidence.probability * 100:.0f} of 100"
    violating = sum(not row.tolerated.allow(outcome.measures) for outcome in row.control)
    if fault is None and row.control:
        # so often simulations without violations would come from a change that changes nothing
        by_chance = (1 - violating / len(row.control)) ** len(row.outcomes)
        if by_chance > 1 - SURE_ENOUGH:
            return (
                f"only {violating} of {len(row.control)} simulations under the recorded rules have the violations, "
                "so that others have none shows little"
            )
    known = [outcome.measures.never_sent for outcome in row.control]
    if simulated.never_sent > max([row.recorded.never_sent, *known]):
        return f"{simulated.never_sent} entries would not have been sent by the end of the log"
    return None


def _all_changes(recorded: Profile) -> Iterator[Change]:
    version = parse_version(recorded.broker_version)
    newest = {known[:2]: known for known in known_releases()}
    patch = newest.get(version[:2])
    if patch is not None and patch >= version and text_of(patch) != recorded.broker_version:
        yield _change(PATCH, text_of(patch))
    settings = list(_settings_of(recorded))
    for setting in settings:
        yield _change(SETTING, None, setting)
    if recorded.key_shared_mode != AUTO_SPLIT:
        clients = ClientChanges(KEY_SHARED, AUTO_SPLIT)
        said = "let the consumers subscribe with KeySharedPolicy.autoSplitHashRange"
        yield Change(CLIENT, said, replace(RECORDED, name="AUTO_SPLIT", clients=clients))
    lines = [known for line, known in sorted(newest.items()) if line > version[:2]]
    for known in lines:
        yield _change(LINE, text_of(known))
    for known in lines:
        for setting in settings:
            yield _change(LINE_AND_SETTING, text_of(known), setting)


def _settings_of(recorded: Profile) -> Iterator[dict[str, bool]]:
    """Each switch the other way round. Nothing is moved to the classic dispatcher, which 5.0 does not have any more."""
    if recorded.dispatcher is Dispatcher.SINGLE_ACTIVE:
        yield {_RING: not recorded.settings.get(_RING, False)}
        return
    if recorded.dispatcher is Dispatcher.KEY_SHARED_CLASSIC and _CLASSIC in recorded.settings:
        yield {_CLASSIC: False}
    if recorded.key_shared_mode == AUTO_SPLIT:
        yield {_CONSISTENT: not recorded.consistent_hashing}


def _change(kind: str, release: str | None, settings: dict[str, bool] | None = None) -> Change:
    settings = settings or {}
    written = [f"{name}={str(value).lower()}" for name, value in settings.items()]
    said = [f"run the brokers with {release}"] if release is not None else []
    said += [f"set {text}" for text in written]
    name = " ".join([*([release] if release is not None else []), *written])
    return Change(kind, " and ".join(said), RuleSet(name, release, settings))


def _alike(profile: Profile, other: Profile) -> bool:
    """True if two profiles decide alike: a setting that a release ignores makes no other rules."""
    return same_rules(profile, other) or (
        profile.broker_version == other.broker_version
        and profile.name == other.name
        and {name: value for name, value in profile.settings.items() if name not in profile.ignored_settings}
        == {name: value for name, value in other.settings.items() if name not in other.ignored_settings}
    )


# --- side effects ---------------------------------------------------------------------------------------------------


def side_effects(row: Row) -> dict[str, Any]:
    """List the side effects of a change on waits, balance and keys: recorded and predicted."""
    recorded, simulated = row.recorded, row.simulated
    assert recorded is not None
    assert simulated is not None
    return {
        "wait_ms_p50": [recorded.wait_ms.p50, simulated.wait_ms.p50],
        "wait_ms_p99": [recorded.wait_ms.p99, simulated.wait_ms.p99],
        "blocked_message_s": [recorded.blocked_message_s, simulated.blocked_message_s],
        "max_share_ratio": [recorded.max_share_ratio, simulated.max_share_ratio],
        "redelivered": [recorded.redelivered, simulated.redelivered],
        "never_sent": [recorded.never_sent, simulated.never_sent],
        "moved": None if row.same_first_consumer is None else round(1 - row.same_first_consumer, 4),
    }
