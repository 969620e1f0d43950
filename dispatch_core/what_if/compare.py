"""Compare a recording with simulations of the same clients and load under other rules.

Every simulation is one pure call, ``outcome(case, profile, seed)``, so cases and profiles can be sent to other processes. A
prediction is made from several seeds, which differ in the delays that no log shows. Its probability (``calibration``)
depends on how many of them have order violations, and on the *control*: simulations under the recorded rules, which should
have what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.positions import locate
from dispatch_core.audit.catalogue import PER_KEY_ORDER
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.promise import FAIL, PASS, UNKNOWN
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.audit.unsent_entries import lowest, positions_sent
from dispatch_core.broker.old_releases import is_old
from dispatch_core.broker.profiles import Profile
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.recording.rewrite import without_trace
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.what_if.assumed import assumptions_of, names_of
from dispatch_core.what_if.calibration import Evidence, measured_releases, violates
from dispatch_core.what_if.client_changes import AS_RECORDED, ClientChanges, admitted
from dispatch_core.what_if.clients import Deliveries
from dispatch_core.what_if.measure import Measures, measures, together
from dispatch_core.what_if.policies import not_simulated
from dispatch_core.what_if.proposals.catalogue import Proposal
from dispatch_core.what_if.proposals.runs import assumed_by
from dispatch_core.what_if.recorded import RecordedLoad, load_of
from dispatch_core.what_if.rules import (
    EVERYBODY,
    NO_CUSTOM,
    RECORDED,
    SEEDS,
    CustomRules,
    Priorities,
    RuleSet,
    Settings,
    same_rules,
    without_effect,
)
from dispatch_core.what_if.run import deliveries_of, simulate

Ints = npt.NDArray[np.int64]

#: The reason why nothing is predicted of the order of a Shared subscription.
NO_ORDER: Final = "a Shared subscription promises no order"
#: Measures of which the least and the most over all seeds are shown.
_OVER_SEEDS: Final = ("order_violations", "wait_ms_p50", "wait_ms_p99", "blocked_message_s", "never_sent")


@dataclass(frozen=True, slots=True, eq=False)
class FirstConsumers:
    """The connection to which each position was sent first; positions ascend."""

    ledger: Ints
    entry: Ints
    consumer: Ints

    @classmethod
    def of(cls, deliveries: pa.Table) -> FirstConsumers:
        """From the table ``deliveries``."""
        first = deliveries.filter(pc.equal(deliveries["delivery_number"], 1))
        names = ("ledger_id", "entry_id", "consumer")
        ledger, entry, consumer = (np.asarray(first[name].combine_chunks(), np.int64) for name in names)
        order = np.lexsort((entry, ledger))
        return cls(ledger[order], entry[order], consumer[order])

    def shared_with(self, other: FirstConsumers) -> float | None:
        """The part of these positions that went first to the same connection in ``other``; ``None`` without positions."""
        if not len(self.ledger):
            return None
        at = locate(other.ledger, other.entry, self.ledger, self.entry)
        same = (at >= 0) & (np.append(other.consumer, -1)[at] == self.consumer)
        return round(float(same.mean()), 4)


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded dispatcher, ready to be simulated under any rules.

    Attributes:
        recorded: the measures of the recording.
        begin: the lowest position (ledger, entry) that was sent; ``None`` = nothing was.
        from_us: what happened before this time is not measured, microseconds since the epoch; ``None`` = all is.
    """

    recording: str
    cluster: str
    topic: str
    subscription: str
    incarnation: int
    load: RecordedLoad = field(repr=False)
    deliveries: Deliveries | None = field(repr=False)  # of the load under the recorded rules
    recorded: Measures = field(repr=False)
    first: FirstConsumers = field(repr=False)
    begin: tuple[int, int] | None
    assumptions: tuple[str, ...]
    from_us: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation of a case.

    ``same_first_consumer``: part of the positions sent first to the recorded consumer. ``notes``: what custom rules did.
    """

    seed: int
    measures: Measures
    same_first_consumer: float | None
    figures: Mapping[str, float] = field(default_factory=dict)  # what a proposal did, by name
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Control:
    """The simulation under the recorded rules compared with the recording.

    ``right``: part of the dispatchers (1 of 1) for which both have order violations or both have none.
    """

    same_first_consumer: float | None
    recorded_violations: int
    simulated_violations: int
    right: float

    def as_json(self) -> dict[str, Any]:
        """As an object."""
        return {
            "same_first_consumer": self.same_first_consumer,
            "recorded_order_violations": self.recorded_violations,
            "simulated_order_violations": self.simulated_violations,
            "right": self.right,
        }


@dataclass(frozen=True, slots=True)
class OrderLimits:
    """Order violations that a policy tolerates; ``None`` = any number."""

    out_of_order: float | None = 0.0
    split_key: float | None = 0.0

    def allow(self, measured: Measures) -> bool:
        """Check that there are no more than these."""
        return all(
            limit is None or count <= limit
            for limit, count in (
                (self.out_of_order, measured.out_of_order),
                (self.split_key, measured.split_key),
            )
        )

    @classmethod
    def of(cls, rule: Rule) -> OrderLimits:
        """Return what a rule of the policy tolerates."""
        return cls(rule.limit(PER_KEY_ORDER, "out_of_order"), rule.limit(PER_KEY_ORDER, "split_key"))

    @classmethod
    def over(cls, limits: Sequence[OrderLimits]) -> OrderLimits:
        """Return what is tolerated of several topics together."""
        return cls(
            _sum_of([limit.out_of_order for limit in limits]), _sum_of([limit.split_key for limit in limits])
        )


def _sum_of(limits: Sequence[float | None]) -> float | None:
    known = [limit for limit in limits if limit is not None]
    return sum(known) if len(known) == len(limits) else None


NO_VIOLATION: Final = OrderLimits()


@dataclass(frozen=True, slots=True)
class Confidence:
    """The probability of a prediction, and the evidence for it.

    Attributes:
        violates: more order violations than are tolerated are predicted.
        probability: how often such a prediction comes true, as measured on recordings (``calibration``).
        seeds, violating: simulations, and those of them that have more order violations than are tolerated.
        control: the simulations under the recorded rules; ``None`` = there are none.
        not_measured: the reason why no pair of recordings shows how often such predictions come true; ``None`` = some do.
    """

    violates: bool
    probability: float
    seeds: int
    violating: int
    control: Control | None
    not_measured: str | None = None

    @classmethod
    def of(
        cls,
        outcomes: Sequence[Outcome],
        control: Control | None,
        tolerated: OrderLimits,
        not_measured: str | None = None,
    ) -> Confidence:
        """The confidence in a prediction from some outcomes, at least one."""
        evidence = evidence_of(outcomes, tolerated)
        share = violates(evidence)
        return cls(
            violates=share >= 0.5,
            probability=round(max(share, 1 - share), 2),
            seeds=len(outcomes),
            violating=evidence.violating,
            control=control,
            not_measured=not_measured,
        )

    @property
    def reason(self) -> str:
        """Write the evidence for the probability as a sentence without a full stop."""
        found = f"{self.violating} of {self.seeds} simulations have more order violations than are tolerated"
        control = self.control
        if control is None:
            return f"{found}; the recorded rules could not be simulated, so nothing shows how good the simulation is"
        same = f"{control.same_first_consumer or 0:.1%} of the positions go first where they went"
        if control.right == 1.0:
            return f"{found}; under the recorded rules the simulation has what was recorded, and {same}"
        return (
            f"{found}; under the recorded rules the simulation has {control.simulated_violations} order violations, the "
            f"recording {control.recorded_violations}, and {same}"
        )

    def as_json(self) -> dict[str, Any]:
        """As an object."""
        return {
            "violates": self.violates,
            "probability": self.probability,
            "seeds": self.seeds,
            "violating_seeds": self.violating,
            "control": None if self.control is None else self.control.as_json(),
            "reason": self.reason,
            "not_measured": self.not_measured,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A prediction: one dispatcher, or all topics of a subscription (``topic`` empty), under one set of rules.

    ``recorded_rules``: the profile of the recording; ``None`` = not known, or of several topics. ``simulated`` and
    ``confidence`` are ``None`` where it could not be simulated: ``problem`` says why. ``judged``, ``not_measured``: see
    ``Confidence``.
    """

    recording: str
    cluster: str
    topic: str
    subscription: str
    subscription_type: str
    incarnation: int | None
    rules: RuleSet
    profile: str
    recorded: Measures | None
    outcomes: tuple[Outcome, ...] = ()
    control: tuple[Outcome, ...] = ()
    judged: Control | None = None
    not_measured: str | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None
    tolerated: OrderLimits = NO_VIOLATION
    recorded_rules: str | None = None

    @property
    def confidence(self) -> Confidence | None:
        """Return the probability of the prediction, and the evidence."""
        if not self.outcomes:
            return None
        return Confidence.of(self.outcomes, self.judged, self.tolerated, self.not_measured)

    @property
    def is_control(self) -> bool:
        """True if the rules are the recorded ones, so that the recording shows how good the simulation is."""
        return (
            self.profile != ""
            and self.profile == self.recorded_rules
            and not (
                self.rules.settings
                or self.rules.priorities
                or self.rules.broker_version
                or self.rules.clients
            )
        )

    @property
    def shown(self) -> Outcome | None:
        """The middle one of all seeds that have what is predicted, by order violations, then by waits."""
        confidence = self.confidence
        predicted = [
            simulated
            for simulated in self.outcomes
            if confidence is not None and self.tolerated.allow(simulated.measures) != confidence.violates
        ]
        return _middle(predicted or self.outcomes)

    @property
    def simulated(self) -> Measures | None:
        """The predicted measures."""
        return None if self.shown is None else self.shown.measures

    @property
    def same_first_consumer(self) -> float | None:
        """Part of the positions that are predicted to go first to the recorded connection."""
        return None if self.shown is None else self.shown.same_first_consumer

    @property
    def verdict(self) -> str:
        """FAIL: more order violations are predicted than tolerated. PASS: no more. UNKNOWN: nothing could be predicted."""
        confidence = self.confidence
        if confidence is None or self.simulated is None or not self.simulated.entries:
            return UNKNOWN
        return FAIL if confidence.violates else PASS

    def over_seeds(self) -> dict[str, list[float]]:
        """Least and most of all seeds."""
        found: dict[str, list[float]] = {}
        for name in _OVER_SEEDS:
            values = [
                value
                for simulated in self.outcomes
                if (value := _value(simulated.measures, name)) is not None
            ]
            if values:
                found[name] = [min(values), max(values)]
        return found


def case_of(log: DispatcherLog, from_us: int | None = None) -> Case:
    """Measure a recorded log and take its load from it. Raises ``DispatchAuditError`` for one that cannot be simulated.

    A trace is reduced to its log of level E first, because a simulated log has no trace either. ``from_us``: simulate all of
    the log, and measure only what happens from this time on, microseconds since the epoch.
    """
    load = load_of(log)
    log = replace(log, events=without_trace(log.events)[0])
    deliveries = deliveries_of(load)
    audit = audit_whole(log, from_us=from_us)
    sent = positions_sent(log.events)
    return Case(
        recording=log.recording,
        cluster=log.cluster,
        topic=log.topic,
        subscription=log.subscription,
        incarnation=log.incarnation,
        load=load,
        deliveries=deliveries,
        recorded=measures(log, audit, from_us=from_us),
        first=FirstConsumers.of(audit.deliveries),
        begin=lowest(*sent) if len(sent[0]) else None,
        assumptions=assumptions_of(load, deliveries),
        from_us=from_us,
    )


def outcome(
    case: Case,
    profile: Profile,
    seed: int,
    timers: Settings | None = None,
    priorities: Priorities | None = None,
    proposal: Proposal | None = None,
    custom: CustomRules = NO_CUSTOM,
    clients: ClientChanges = AS_RECORDED,
) -> Outcome:
    """Simulate a case under ``profile``: a pure call, independent of all others.

    ``timers``, ``custom``: see ``run.simulate``. ``priorities``, ``proposal``, ``clients``: see ``RuleSet``. Raises
    ``DispatchAuditError`` for rules that cannot be simulated.
    """
    load = clients.on(case.load.with_priorities(priorities or {}, EVERYBODY))
    log = simulate(
        load,
        profile,
        seed=seed,
        deliveries=case.deliveries,
        timers=timers,
        proposal=proposal,
        custom=custom,
    )
    judged = not custom.plugged and (proposal is None or not proposal.chooses_owners)
    audit = audit_whole(log, from_us=case.from_us, rules=judged)
    there = FirstConsumers.of(audit.deliveries)
    measured = measures(log, audit, begin=case.begin, from_us=case.from_us, judged=judged)
    return Outcome(
        seed,
        measured,
        case.first.shared_with(there),
        log.header.get("figures", {}),
        tuple(log.header.get("notes", ())),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """All predictions: of each dispatcher, and of the subscriptions with several topics."""

    rows: tuple[Row, ...]
    groups: tuple[Row, ...]


def compare(logs: Sequence[DispatcherLog], rules: Sequence[RuleSet], *, seeds: int = SEEDS) -> Comparison:
    """Predict the measures of each log's clients and load under each of ``rules``."""
    rows = tuple(row for log in logs for row in rows_of(log, rules, seeds=range(seeds)))
    return Comparison(rows, tuple(groups_of(rows)))


def rows_of(
    log: DispatcherLog, rules: Sequence[RuleSet], *, seeds: Sequence[int], from_us: int | None = None
) -> Iterator[Row]:
    """The predictions for one log, in the order of ``rules``. A log that cannot be simulated gives rows with ``problem``.

    ``from_us``: see ``case_of``.
    """
    try:
        case = case_of(log, from_us)
    except DispatchAuditError as error:
        yield from (_row(log, None, rule_set, problem=str(error)) for rule_set in rules)
        return
    predicted = predicted_for(log, case, seeds)
    yield from (predicted(rule_set) for rule_set in rules)


def predicted_for(log: DispatcherLog, case: Case, seeds: Sequence[int]) -> Callable[[RuleSet], Row]:
    """A function that predicts ``case`` of ``log`` under some rules; equal rules and the control are simulated once."""
    simulated: list[tuple[Profile, RuleSet, tuple[Outcome, ...]]] = []

    def simulated_by(profile: Profile, wanted: RuleSet) -> tuple[Outcome, ...]:
        for seen, before, found in simulated:
            if same_rules(seen, profile) and before.beside_profile == wanted.beside_profile:
                return found
        outcomes = tuple(outcome(case, profile, seed, *wanted.beside_profile) for seed in seeds)
        simulated.append((profile, wanted, outcomes))
        return outcomes

    control = _control(log, simulated_by)

    def predicted(rules: RuleSet) -> Row:
        try:
            profile = rules.profile_for(log)
            outcomes = simulated_by(profile, rules)
            return _row(log, case, rules, profile=profile, outcomes=outcomes, control=control)
        except DispatchAuditError as error:
            return _row(log, case, rules, problem=str(error))

    return predicted


def _control(
    log: DispatcherLog, simulated_by: Callable[[Profile, RuleSet], tuple[Outcome, ...]]
) -> tuple[Outcome, ...]:
    """Simulations under the recorded rules; none if these are unknown or cannot be simulated."""
    try:
        return simulated_by(profile_of(log), RECORDED)
    except DispatchAuditError:
        return ()


def _row(
    log: DispatcherLog,
    case: Case | None,
    rules: RuleSet,
    *,
    profile: Profile | None = None,
    outcomes: tuple[Outcome, ...] = (),
    control: tuple[Outcome, ...] = (),
    problem: str | None = None,
) -> Row:
    proposal, middle = rules.proposal, _middle(outcomes)
    assumptions = () if case is None else case.assumptions
    warnings: tuple[str, ...] = ()
    if profile is not None:
        warnings = (*profile.warnings, *rules.clients.describe(log), *without_effect(rules, profile))
        warnings += _left_out(case, profile)
        missing = not_simulated(log, rules.applied_to(log))
        warnings += () if missing is None else (missing,)
    if proposal is not None and case is not None and outcomes:
        warnings = (proposal.mark, *warnings)
        assumptions = (*assumptions, *assumed_by(proposal, case.load, case.deliveries))
    return Row(
        recording=log.recording,
        cluster=log.cluster,
        topic=log.topic,
        subscription=log.subscription,
        subscription_type=subscription_type(log),
        incarnation=log.incarnation,
        rules=rules,
        profile="" if profile is None else profile.name,
        recorded=None if case is None else case.recorded,
        outcomes=outcomes,
        control=control,
        judged=judged([control], [case.recorded]) if case is not None else None,
        not_measured=None if profile is None else _not_measured(log, rules, profile, case),
        assumptions=assumptions,
        warnings=warnings,
        notes=() if middle is None else middle.notes,
        problem=problem,
        recorded_rules=None if case is None or case.load.profile is None else case.load.profile.name,
    )


def groups_of(rows: Iterable[Row]) -> Iterator[Row]:
    """One prediction for all topics of a subscription and each set of rules, if there are several topics.

    A topic that occurs twice (recorded twice, or loaded twice) makes no group, because its parts are not simultaneous.
    """
    of: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        group = row.cluster, row.subscription, row.subscription_type, row.rules.name
        of.setdefault(group, []).append(row)
    for (cluster, subscription, kind, _), some in of.items():
        able = [row for row in some if row.outcomes and row.recorded is not None]
        if len({row.topic for row in able}) < 2 or len({row.topic for row in some}) < len(some):
            continue
        seeds = range(min(len(row.outcomes) for row in able))
        outcomes = tuple(_all(able, [row.outcomes[seed] for row in able]) for seed in seeds)
        recorded = [row.recorded for row in able if row.recorded is not None]
        left_out = len(some) - len(able)
        yield Row(
            recording="",
            cluster=cluster,
            topic="",
            subscription=subscription,
            subscription_type=kind,
            incarnation=None,
            rules=some[0].rules,
            profile=able[0].profile,
            recorded=together(recorded),
            outcomes=outcomes,
            judged=judged([row.control for row in able], recorded),
            not_measured=next((row.not_measured for row in able if row.not_measured is not None), None),
            assumptions=tuple(dict.fromkeys(text for row in able for text in row.assumptions)),
            warnings=tuple(dict.fromkeys(text for row in able for text in row.warnings)),
            problem=f"{left_out} of {len(some)} topics could not be simulated and are left out"
            if left_out
            else None,
            tolerated=OrderLimits.over([row.tolerated for row in able]),
        )


def _all(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of all topics for one seed, added up."""
    weighed = [
        (simulated.same_first_consumer, row.recorded.entries)
        for row, simulated in zip(rows, outcomes, strict=True)
        if row.recorded is not None and simulated.same_first_consumer is not None
    ]
    return Outcome(outcomes[0].seed, together([simulated.measures for simulated in outcomes]), _mean(weighed))


def _mean(weighed: Sequence[tuple[float, int]]) -> float | None:
    total = sum(weight for _, weight in weighed)
    return round(sum(value * weight for value, weight in weighed) / total, 4) if total else None


def _left_out(case: Case | None, profile: Profile) -> tuple[str, ...]:
    """Say which connections the rules would accept that the recorded broker refused: no log shows their permits."""
    found = [] if case is None else admitted(case.load, profile)
    if not found:
        return ()
    return (
        f"{names_of(found)}: refused by the recorded broker, accepted under these rules; left out, as the log shows none of "
        "the permits that it would grant. --client consumers=N adds a consumer that answers like a recorded one",
    )


def _not_measured(log: DispatcherLog, rules: RuleSet, profile: Profile, case: Case | None) -> str | None:
    """The reason why no pair of recordings is like this prediction; ``None`` = some are."""
    if rules.proposal is not None:
        return f"nothing was recorded under {rules.proposal.title}, so its rules are those of its text and not of a broker"
    if rules.custom.plugged:
        return "no release has these rules, so nothing was recorded under them"
    if profile.is_shared:
        return NO_ORDER
    if is_old(profile.version):
        return "no recording confirms the rules of this release"
    if case is not None and case.load.begins_at_work:
        return "no logs that begin with a checkpoint of a dispatcher at work were compared"
    if (missing := not_simulated(log, rules.applied_to(log))) is not None:
        return missing
    if rules.clients.describe(log) or rules.priorities or rules.custom.client_ranges is not None:
        return "no client script was recorded with both settings of its consumers"
    if _left_out(case, profile):
        return "consumers that the recorded broker refused would be accepted, and are left out"
    known = measured_releases()
    for release in (profile.broker_version, str(log.header.get("broker_version"))):
        if release not in known:
            return f"no recordings of {release} were compared, only of {listed(known)}"
    return None


def evidence_of(outcomes: Sequence[Outcome], tolerated: OrderLimits = NO_VIOLATION) -> Evidence:
    """Count what simulations show of the probability of more order violations than are tolerated."""
    return Evidence(
        simulations=len(outcomes),
        violating=sum(not tolerated.allow(simulated.measures) for simulated in outcomes),
    )


def judged(controls: Sequence[Sequence[Outcome]], recorded: Sequence[Measures]) -> Control | None:
    """The controls of some dispatchers as one; ``None`` if one of them has none."""
    middles = [_middle(control) for control in controls]
    found = [middle for middle in middles if middle is not None]
    if len(found) < len(middles) or not found:
        return None
    right = [
        (control.measures.order_violations > 0) == (recording.order_violations > 0)
        for control, recording in zip(found, recorded, strict=True)
    ]
    weighed = [
        (control.same_first_consumer, recording.entries)
        for control, recording in zip(found, recorded, strict=True)
        if control.same_first_consumer is not None
    ]
    return Control(
        same_first_consumer=_mean(weighed),
        recorded_violations=sum(recording.order_violations for recording in recorded),
        simulated_violations=sum(control.measures.order_violations for control in found),
        right=round(sum(right) / len(right), 4),
    )


def _middle(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The upper median: order violations are predicted if at least half of the seeds have some."""
    ranked = sorted(
        outcomes,
        key=lambda simulated: (
            simulated.measures.order_violations,
            simulated.measures.wait_ms.p99 or 0.0,
            simulated.seed,
        ),
    )
    return ranked[len(ranked) // 2] if ranked else None


def _value(measured: Measures, name: str) -> float | None:
    if name == "blocked_message_s" and not measured.judged:
        return None
    spread: Mapping[str, float | None] = {
        "wait_ms_p50": measured.wait_ms.p50,
        "wait_ms_p99": measured.wait_ms.p99,
    }
    return spread[name] if name in spread else getattr(measured, name)
