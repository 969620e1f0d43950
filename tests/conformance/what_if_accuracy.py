"""Measure how often ``what-if`` is right: recordings of one client script under many rules predict each other.

``make accuracy`` writes ``bench/results/what-if-accuracy.md``, and the coefficients by which ``what-if`` says how sure it
is. A *pair* is two recordings of one script: with the load and clients of the source the target's rules are simulated. The
prediction is whether the target has order violations (``out_of_order`` or ``split_key``). The source simulated under its own
rules is the control, and no pair.

``--keep FOLDER`` keeps the outcomes of each source there and takes them from there the next time, so that a fit can be made
again without simulating. ``--sample N`` takes N sources of each script, always the same ones.
"""

from __future__ import annotations

import argparse
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from dispatch_core.audit.unsent_entries import lowest
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.what_if import calibration
from dispatch_core.what_if.clients import Deliveries
from dispatch_core.what_if.compare import Control, FirstConsumers, Outcome, evidence_of, judged
from dispatch_core.what_if.measure import Measures, measures
from dispatch_core.what_if.recorded import RecordedLoad, load_of
from dispatch_core.what_if.rules import SEEDS
from dispatch_core.what_if.run import deliveries_of, simulate
from tests.conformance import what_if_advice, what_if_calibration
from tests.conformance.what_if_calibration import Judged, Trial, cross_validated

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDINGS: Final = ROOT.parent / "shared" / "recordings"
PAGE: Final = ROOT / "bench" / "results" / "what-if-accuracy.md"
#: Written by ``what_if_repeats``.
REPEATS: Final = ROOT / "bench" / "results" / "what-if-repeats.md"
#: The columns of every table: releases and variants that the scripts were recorded under.
RULES: Final = (
    *(
        f"{release}/{variant}"
        for release in ("4.2.4", "4.0.0")
        for variant in ("ch", "range", "classic-ch", "classic-range")
    ),
    *(f"4.0.0-preview.1/{variant}" for variant in ("ch", "range")),
)
_VARIANTS: Final = ("classic-ch", "classic-range", "ch", "range")
_RELEASES: Final = ("4.2.4", "4.0.0", "4.0.0-preview.1")
COEFFICIENTS: Final = ROOT / "dispatch_core" / "what_if" / calibration.COEFFICIENTS
PLOT: Final = ROOT / "bench" / "results" / "what-if-calibration.svg"
_SHORT: Final = {"4.0.0-preview.1": "pre"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording of a script. ``rules``: ``<release>/<variant>``."""

    script: str
    rules: str
    log: DispatcherLog
    measures: Measures
    first: FirstConsumers

    @property
    def violates(self) -> bool:
        """True if it has order violations, or a hand-over that has what looks like one."""
        return violates(self.measures)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prediction of ``target`` from ``source``, from some seeds.

    ``control``: simulations of the source under its own rules. ``problem``: the reason if there is no prediction, which
    counts as wrong. ``probability``: of order violations, by the other scripts; ``None`` = not known yet, or no prediction.
    """

    source: Recorded
    target: Recorded
    outcomes: tuple[Outcome, ...]
    control: Control | None
    problem: str | None = None
    probability: float | None = None
    stored_there: Outcome | None = None  # a simulation whose storage takes as long as the target's

    @property
    def violating_seeds(self) -> int:
        """Seeds that have order violations, or such hand-overs."""
        return sum(violates(outcome.measures) for outcome in self.outcomes)

    @property
    def predicted(self) -> bool | None:
        """True if order violations are more likely than not; None without a simulation.

        Without a probability (Failover, large recordings): if at least half of the seeds have some.
        """
        if self.probability is not None:
            return self.probability >= 0.5
        return 2 * self.violating_seeds >= len(self.outcomes) if self.outcomes else None

    @property
    def right(self) -> bool:
        """True if the prediction is what was recorded."""
        return self.predicted is self.target.violates

    @property
    def within_a_release(self) -> bool:
        """True if one release recorded both."""
        return self.source.rules.partition("/")[0] == self.target.rules.partition("/")[0]


def violates(measured: Measures) -> bool:
    """Check whether a key was at two consumers or went backwards, whether that is documented (Failover) or a violation."""
    return measured.order_violations + measured.handed_over > 0


def scripts(folder: Path = RECORDINGS, kinds: Sequence[str] = ("designed-",)) -> dict[str, list[Recorded]]:
    """The recordings of each script that was recorded under several rules, in the order of ``RULES``.

    A recording of the same script with another load (seed, messages, keys) is left out and named on stderr.
    """
    found: dict[str, list[Recorded]] = {}
    for rules in RULES:
        release, variant = rules.split("/")
        for path in sorted((folder / release).glob(f"*-{variant}")):
            script = path.name.removesuffix(f"-{variant}")
            if not path.name.startswith(tuple(kinds)) or script.endswith("-classic"):
                continue
            recording = recorded(path, script, rules)
            known = found.setdefault(script, [])
            if known and _load(known[0].log) != _load(recording.log):
                print(
                    f"{path.parent.name}/{path.name}: not the load of {known[0].log.recording}",
                    file=sys.stderr,
                )
                continue
            known.append(recording)
    return {script: several for script, several in sorted(found.items()) if len(several) > 1}


def random_scripts(folder: Path = RECORDINGS) -> dict[str, list[Recorded]]:
    """The Key_Shared scripts made at random that were recorded under several rules with the same load."""
    found: dict[str, list[list[Recorded]]] = {}
    for rules in RULES:
        release, variant = rules.split("/")
        for path in sorted((folder / release).glob(f"random-*-{variant}-*")):
            number, kind = path.name.split("-")[1], path.name.rpartition("-")[2]
            if path.name != f"random-{number}-{variant}-{kind}":
                continue
            recording = recorded(path, f"random-{number}-{kind}", rules)
            loads = found.setdefault(recording.script, [])
            same = next((some for some in loads if _load(some[0].log) == _load(recording.log)), None)
            if same is None:
                loads.append([recording])
            else:
                same.append(recording)
    return {script: some for script, loads in sorted(found.items()) for some in loads if len(some) > 1}


def failover_scripts(folder: Path = RECORDINGS) -> dict[str, list[Recorded]]:
    """The Failover scripts that were recorded under modulo and ring, by partition index."""
    return {
        f"designed-failover-p{index}": [
            recorded(
                folder / "4.2.4" / f"designed-failover-{rule}-p{index}", f"failover-p{index}", f"4.2.4/{rule}"
            )
            for rule in ("modulo", "ring")
        ]
        for index in (-1, 0, 1, 2)
    }


def recorded(path: Path, script: str, rules: str) -> Recorded:
    """Read and measure one recording."""
    (source,) = find_recordings([str(path)])
    (log,) = read_recording(source).logs
    audit = audit_whole(log, rules=False)
    return Recorded(script, rules, log, measures(log, audit), FirstConsumers.of(audit.deliveries))


def _load(log: DispatcherLog) -> tuple[object, ...]:
    return log.header.get("seed"), log.messages["key"].to_pylist(), log.messages["num_messages"].to_pylist()


def pairs_of(
    several: Sequence[Recorded],
    seeds: Sequence[int],
    sources: Callable[[Recorded], bool] = lambda _: True,
    keep: Path | None = None,
) -> Iterator[Pair]:
    """All ordered pairs of one script from some ``sources``, and the controls.

    Of more than ``SEEDS`` seeds each ``SEEDS`` make a prediction of their own, as ``what-if`` makes them.
    """
    for source in filter(sources, several):
        found = _kept(source, several, seeds, keep)
        groups = [range(first, first + SEEDS) for first in range(0, len(seeds), SEEDS)]
        for group in groups:
            control = found[source.rules]
            measured = (
                None
                if isinstance(control, str)
                else judged([control[:-1][group.start : group.stop]], [source.measures])
            )
            for target in several:
                outcomes = found[target.rules]
                if isinstance(outcomes, str):
                    yield Pair(source, target, (), None, outcomes)
                else:
                    *some, stored_there = outcomes
                    yield Pair(
                        source,
                        target,
                        tuple(some[group.start : group.stop]),
                        measured,
                        stored_there=stored_there,
                    )


def _kept(
    source: Recorded, several: Sequence[Recorded], seeds: Sequence[int], keep: Path | None
) -> dict[str, tuple[Outcome, ...] | str]:
    """The outcomes under the rules of each target, simulated or as they were kept; the last has the target's storage."""
    path = (
        None
        if keep is None
        else keep / f"{source.script} {source.rules.replace('/', ' ')} {len(seeds)}.pickle"
    )
    if path is not None and path.exists():
        found: dict[str, tuple[Outcome, ...] | str] = pickle.loads(path.read_bytes())
        return found
    found = _simulated(source, several, seeds)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(found))
    return found


def _simulated(
    source: Recorded, several: Sequence[Recorded], seeds: Sequence[int]
) -> dict[str, tuple[Outcome, ...] | str]:
    try:
        load = load_of(source.log)
        deliveries = deliveries_of(load)
    except DispatchAuditError as error:
        return {target.rules: str(error) for target in several}
    found: dict[str, tuple[Outcome, ...] | str] = {}
    for target in several:
        try:
            profile = profile_of(target.log)
            there = replace(load, topic=target.log.topic)  # Failover's ring places topics by name
            logs = [simulate(there, profile, seed=seed, deliveries=deliveries) for seed in seeds]
            logs.append(
                simulate(there, profile, deliveries=_stored_as(load, load_of(target.log), deliveries))
            )
            found[target.rules] = tuple(
                _outcome(source, log, seed) for log, seed in zip(logs, (*seeds, 0), strict=True)
            )
        except DispatchAuditError as error:
            found[target.rules] = str(error)
    return found


def _stored_as(load: RecordedLoad, target: RecordedLoad, deliveries: Deliveries | None) -> Deliveries | None:
    """The deliveries with a storage that takes as long for each entry as that of the target."""
    if deliveries is None or len(load.published_us) != len(target.published_us):
        return deliveries
    took_us = target.stored_us - target.published_us
    return replace(deliveries, stored_us=np.maximum.accumulate(load.published_us + took_us))


def _outcome(source: Recorded, log: DispatcherLog, seed: int) -> Outcome:
    audit = audit_whole(log, rules=False)
    there = FirstConsumers.of(audit.deliveries)
    first = source.first
    begin = lowest(first.ledger, first.entry) if len(first.ledger) else None
    return Outcome(seed, measures(log, audit, begin=begin), first.shared_with(there))


def trial_of(pair: Pair) -> Trial:
    """A pair that was simulated, as a trial of how sure predictions are."""
    return Trial(pair.source.script, evidence_of(pair.outcomes), pair.target.violates)


def with_probabilities(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Judged]]:
    """All pairs with the probability that the other scripts give them, and the trials behind these; controls are none."""
    able = [at for at, pair in enumerate(pairs) if pair.outcomes and pair.source is not pair.target]
    found = {at: trial_of(pairs[at]) for at in able}
    said = {id(known.trial): known for known in cross_validated(list(found.values()))}
    known = {at: said[id(trial)] for at, trial in found.items()}
    changed = [
        replace(pair, probability=known[at].probability) if at in known else pair
        for at, pair in enumerate(pairs)
    ]
    return changed, list(known.values())


# --- counting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """Count correct predictions. ``found`` of ``violating`` targets, ``alarms`` predicted violations."""

    pairs: int
    right: int
    violating: int
    found: int
    alarms: int

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Score:
        """Score some pairs; controls among them do not count."""
        some = [pair for pair in pairs if pair.source is not pair.target]
        violating = [pair for pair in some if pair.target.violates]
        return cls(
            len(some),
            sum(pair.right for pair in some),
            len(violating),
            sum(pair.predicted is True for pair in violating),
            sum(pair.predicted is True for pair in some),
        )

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.right / self.pairs if self.pairs else 0.0

    @property
    def recall(self) -> float:
        """Share of violating targets that were found."""
        return self.found / self.violating if self.violating else 1.0

    @property
    def precision(self) -> float:
        """Share of alarms that were true."""
        return self.found / self.alarms if self.alarms else 1.0

    def row(self, name: str) -> str:
        """A line of a table."""
        recall = f"{self.recall:.1%}" if self.violating else "-"
        precision = f"{self.precision:.1%}" if self.alarms else "-"
        return (
            f"| {name} | {self.pairs} | {self.right} | {self.accuracy:.1%} | {self.violating} | {self.found} | {recall} | "
            f"{self.alarms} | {precision} |"
        )


_SCORES: Final = (
    "| | pairs | right | accuracy | violating targets | found | recall | alarms | precision |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def copied(pairs: Sequence[Pair]) -> Score:
    """Score the prediction "as it was recorded"."""
    some = [pair for pair in pairs if pair.source is not pair.target]
    both = sum(pair.source.violates and pair.target.violates for pair in some)
    return Score(
        len(some),
        sum(pair.source.violates == pair.target.violates for pair in some),
        sum(pair.target.violates for pair in some),
        both,
        sum(pair.source.violates for pair in some),
    )


def always_clean(pairs: Sequence[Pair]) -> Score:
    """Score the prediction "always clean"."""
    some = [pair for pair in pairs if pair.source is not pair.target]
    violating = sum(pair.target.violates for pair in some)
    return Score(len(some), len(some) - violating, violating, 0, 0)


# --- the page -------------------------------------------------------------------------------------------------------


def page(
    pairs: Sequence[Pair],
    large: Sequence[Pair] = (),
    failover: Sequence[Pair] = (),
    advice: str | None = None,
) -> str:
    """The page as Markdown. ``advice``: how right ``advise`` is, with its table; ``None`` = not measured."""
    pairs, found = with_probabilities(pairs)
    designed = [pair for pair in pairs if pair.source.script.startswith("designed-")]
    parts = [
        _INTRODUCTION.format(
            pairs=Score.of(designed).pairs, more=Score.of(pairs).pairs - Score.of(designed).pairs, seeds=SEEDS
        ),
        _bars(pairs, designed, found),
        _summary(designed, pairs),
    ]
    parts += [
        "## Is it as sure as it says?",
        _CALIBRATED.format(brier=what_if_calibration.brier(found), base=_base(found)),
    ]
    parts += [what_if_calibration.table(found), f"![said and come true]({PLOT.name})"]
    parts += ["## By script", _by_script(pairs)]
    parts += ["## Waits", _waits(designed)]
    if REPEATS.is_file():
        parts += [REPEATS.read_text(encoding="utf-8").replace("# ", "## ", 1).strip()]
    parts += ["## Misses", _misses(pairs)]
    parts += [] if advice is None else ["## Advice", advice]
    parts += ["## Every pair", _EVERY]
    for script in dict.fromkeys(pair.source.script for pair in designed):
        some = [
            pair
            for pair in designed
            if pair.source.script == script and pair.outcomes[:1] and pair.outcomes[0].seed == 0
        ]
        parts.append(_matrix(script, some))
    if failover:
        parts += ["## Failover, modulo and ring", _listed(failover)]
    if large:
        parts += ["## Large recordings", _listed(large)]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION: Final = """# How often what-if is right

Written by `make accuracy` from the recordings beside the repository; do not edit.

Each client script was recorded under several rules and releases. A pair takes load and clients from one recording (the
source, without the consumers of its `sent` lines) and the rules from another (the target). It predicts whether the target
has order violations (`out_of_order` or `split_key`), and how probable they are. Each prediction comes from {seeds} seeds.
There are {pairs} predictions of `designed-*` scripts and {more} of `random-*` ones. The simulation under the source's own
rules is the control and does not count.

The probability is the share of the simulations that have order violations, with a few counted in advance
(`dispatch_core/what_if/calibration.py`). All figures on this page are cross-validated: what is counted in advance for a
script was fitted without it. What `what-if` uses was fitted to all pairs.

Most targets have no violation, so the answer "always clean" is right most of the time. Accuracy alone therefore says
little: see also how many of the violating targets are found (recall), and how many of the alarms are true (precision)."""

_CALIBRATED: Final = """Predictions by the probability of order violations that they said. The mean square of what was said
minus what was (Brier score) is {brier:.4f}; it would be {base:.4f} if the share of violating targets were always said. A
tenth with few predictions shows little: one of 20 more or less is 0.05."""


def _base(found: Sequence[Judged]) -> float:
    share = sum(known.trial.came_true for known in found) / len(found)
    return share * (1 - share)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Shares of recordings of real brokers that are right about another one of the same script and rules, from ``REPEATS``.

    ``by_chance``: scripts and rules of which fewer than half of the recordings have order violations.
    """

    p50: float
    p99: float
    precision: float
    by_chance: frozenset[tuple[str, str]]

    @classmethod
    def read(cls, text: str) -> Repeats:
        """Read the page that ``what_if_repeats`` writes."""
        everything = next(line for line in text.splitlines() if line.startswith("| **all** |"))
        shares = [float(share) / 100 for share in re.findall(r"([\d.]+)%", everything)]
        p50, p99, _, precision = shares
        chance = {
            (script, rules)
            for script, rules, some, of in re.findall(r"^\| `(\S+)` (\S+) \| (\d+) of (\d+) \|$", text, re.M)
            if 2 * int(some) < int(of)
        }
        return cls(p50, p99, precision, frozenset(chance))

    def recall(self, pairs: Sequence[Pair]) -> float:
        """The share of violating targets whose rules have violations in at least half of the recordings.

        Of the others "clean" is the better prediction.
        """
        violating = [
            (pair.target.script, pair.target.rules)
            for pair in pairs
            if pair.source is not pair.target and pair.target.violates
        ]
        return (
            sum(target not in self.by_chance for target in violating) / len(violating) if violating else 1.0
        )


def _bars(pairs: Sequence[Pair], designed: Sequence[Pair], found: Sequence[Judged]) -> str:
    """The bars, what is reached, and what real brokers reach among themselves."""
    score = Score.of(designed)
    telling = [
        part for part in what_if_calibration.bins(found) if part.trials >= what_if_calibration.LEAST_TRIALS
    ]
    worst = max(part.apart for part in telling)
    both = {
        name: (_both_waits(designed, name), _waits_stored_there(designed, name)) for name in ("p50", "p99")
    }
    waits = {name: tuple(_share_near(some, 0.25, 20.0) for some in two) for name, two in both.items()}
    repeats = Repeats.read(REPEATS.read_text(encoding="utf-8")) if REPEATS.is_file() else None
    ceilings = (
        {}
        if repeats is None
        else {
            "recall": repeats.recall(designed),
            "precision": repeats.precision,
            "p50": repeats.p50,
            "p99": repeats.p99,
        }
    )
    rows = [
        ("recall", "recall, `designed-*`", 0.9, score.recall),
        ("precision", "precision, `designed-*`", 0.95, score.precision),
        *(
            (name if not how else "", f"wait {name} within 25 % or 20 ms{how}", 0.9, share)
            for name, shares in waits.items()
            for how, share in zip(("", ", with the target's storage"), shares, strict=True)
        ),
    ]
    table = [
        f"| {what} | at least {bar:.0%} | {share:.1%} | {'yes' if share >= bar else 'no'} | "
        f"{_ceiling(ceilings.get(name), bar)} |"
        for name, what, bar, share in rows
    ]
    table.append(
        f"| said and come true, in tenths with {what_if_calibration.LEAST_TRIALS} predictions or more | within 0.05 | "
        f"{worst:.3f} | {'yes' if worst <= 0.05 else 'no'} | |"
    )
    head = ["| | bar | measured | reached | of real brokers |", "|---|---|---:|---|---|"]
    parts = ["\n".join([*head, *table])]
    if repeats is not None:
        chance = ", ".join(f"`{script}` {rules}" for script, rules in sorted(repeats.by_chance)) or "none"
        parts.append(_CEILINGS.format(chance=chance))
    return "\n\n".join(parts)


def _ceiling(share: float | None, bar: float) -> str:
    if share is None:
        return ""
    return f"{share:.1%}: **the bar is above it**" if share < bar else f"{share:.1%}"


_CEILINGS: Final = """*Of real brokers* is the measured ceiling: how often a recording is right about another one of the same
script, clients, release and variant ([below](#how-far-brokers-repeat-themselves)). Nothing that knows one recording can be
right more often, except by luck, so a bar above it is not to be reached. It stays the bar. The reasons:

- Recall: some violations are races that few runs lose. Where fewer than half of the recordings of the same rules have
  violations ({chance}), "clean" is the better prediction, and the recording that has them is a miss.
- Waits: how long a storage takes depends on how long the broker has been running, and the scripts' driver waits for what
  it was sent, up to 30 s. Neither is an effect of rules, and both differ from run to run."""


_EVERY: Final = """Rows are sources, columns are targets. `.` clean and predicted clean, `+` violations and predicted,
`M` missed, `F` false alarm, `-` not simulated. A figure counts the seeds with violations where the seeds
disagree. The control stands in parentheses. The row *recorded* counts the order violations of each recording."""


def _summary(designed: Sequence[Pair], pairs: Sequence[Pair]) -> str:
    across = [pair for pair in designed if not pair.within_a_release]
    classic = [
        pair for pair in designed if ("classic" in pair.source.rules) != ("classic" in pair.target.rules)
    ]
    rows = [
        _SCORES,
        Score.of(designed).row("**all of `designed-*`**"),
        Score.of(pair for pair in designed if pair.within_a_release).row("within a release"),
        Score.of(across).row("from one release to another"),
        Score.of(classic).row("from classic to not, and back"),
        always_clean(designed).row('"always clean"'),
        copied(designed).row('"as it was recorded"'),
        Score.of(pair for pair in pairs if pair.source.script.startswith("random-")).row("all of `random-*`"),
    ]
    return "\n".join(rows)


def _by_script(pairs: Sequence[Pair]) -> str:
    names = dict.fromkeys(pair.source.script for pair in pairs)
    return "\n".join(
        [_SCORES, *(Score.of(p for p in pairs if p.source.script == name).row(f"`{name}`") for name in names)]
    )


def _waits_stored_there(pairs: Sequence[Pair], name: str) -> list[tuple[float, float]]:
    """Predicted waits with the storage of the target, and recorded ones."""
    return [
        (getattr(pair.stored_there.measures.wait_ms, name) or 0.0, known)
        for pair in pairs
        if pair.source is not pair.target
        and pair.stored_there is not None
        and (known := getattr(pair.target.measures.wait_ms, name)) is not None
    ]


def _both_waits(pairs: Sequence[Pair], name: str) -> list[tuple[float, float]]:
    """Predicted (the median of the seeds) and recorded waits."""
    both = []
    for pair in pairs:
        known = getattr(pair.target.measures.wait_ms, name)
        if pair.source is pair.target or not pair.outcomes or known is None:
            continue
        predicted = sorted(getattr(outcome.measures.wait_ms, name) or 0.0 for outcome in pair.outcomes)
        both.append((predicted[len(predicted) // 2], known))
    return both


def _share_near(both: Sequence[tuple[float, float]], share: float, least: float) -> float:
    some = [near(predicted, known, share, least) for predicted, known in both]
    return sum(some) / len(some) if some else 0.0


def near(predicted: float, known: float, share: float = 0.25, least: float = 20.0) -> bool:
    """True if a predicted wait differs from the known one by no more than this share, or so many milliseconds."""
    return abs(predicted - known) <= max(share * known, least)


def _own_load(pairs: Sequence[Pair], name: str) -> list[tuple[float, float]]:
    """Simulated waits of each recording under its own rules, and recorded ones."""
    return [
        (getattr(pair.outcomes[0].measures.wait_ms, name) or 0.0, known)
        for pair in pairs
        if pair.source is pair.target
        and pair.outcomes
        and (known := getattr(pair.target.measures.wait_ms, name)) is not None
    ]


def _recorded_twice(pairs: Sequence[Pair], name: str) -> list[tuple[float, float]]:
    """The waits of recordings of one script, of one variant, in 4.2.4 and in 4.0.0: how far reality repeats itself."""
    known = {(pair.target.script, pair.target.rules): pair.target.measures.wait_ms for pair in pairs}
    both = []
    for (script, rules), wait in known.items():
        release, _, variant = rules.partition("/")
        other = known.get((script, f"4.0.0/{variant}"))
        if release == "4.2.4" and other is not None:
            both.append((getattr(wait, name) or 0.0, getattr(other, name) or 0.0))
    return both


def _waits(pairs: Sequence[Pair]) -> str:
    """Compare the predicted waits with the recorded ones."""
    rows = [
        "| predicted against recorded | within 10 % or 5 ms | within 25 % or 20 ms | within a factor of 2 or 20 ms |",
        "|---|---:|---:|---:|",
    ]
    for title, waits in (
        ("", _both_waits),
        ("with the target's storage: ", _waits_stored_there),
        ("the control, with the target's own load: ", _own_load),
        ("4.0.0 against 4.2.4, both recorded: ", _recorded_twice),
    ):
        for name in ("p50", "p99", "max"):
            both = waits(pairs, name)
            if not both:
                continue
            twice = sum(max(two) <= 2 * min(two) or abs(two[0] - two[1]) <= 20 for two in both) / len(both)
            rows.append(
                f"| {title}wait {name} | {_share_near(both, 0.10, 5):.1%} | {_share_near(both, 0.25, 20):.1%} "
                f"| {twice:.1%} |"
            )
    rows.append(
        "\nHow long a storage takes is no effect of rules: it depends on how long the broker has been running. A prediction "
        "has the source's storage; in the rows *with the target's storage* each entry is stored after as long as in the "
        "target. In the control clients and producers are those of the target itself, so what it has right the rules have "
        "right, and the other rows lack what the source's log does not show of other clients. The last three rows compare "
        "two recordings of one script under the same variant, in two releases: a prediction cannot be nearer than brokers "
        "are to each other. The scripts' own timelines differ by up to 300 ms between recordings: their driver waits for "
        "what it was sent."
    )
    return "\n".join(rows)


def _misses(pairs: Sequence[Pair]) -> str:
    """Every wrong prediction, those of one target together."""
    wrong: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        if pair.source is not pair.target and not pair.right:
            wrong.setdefault((pair.target.script, pair.target.rules), []).append(pair)
    rows = ["| script, target | recorded violations | wrong predictions from |", "|---|---:|---|"]
    for (script, rules), some in wrong.items():
        text = ", ".join(
            f"{pair.source.rules} ({pair.violating_seeds} of {len(pair.outcomes)}, said {pair.probability or 0:.2f})"
            if pair.outcomes
            else f"{pair.source.rules} ({pair.problem})"
            for pair in some
        )
        rows.append(f"| `{script}` {rules} | {some[0].target.measures.order_violations} | {text} |")
    return "\n".join(rows) if wrong else "None."


def _matrix(script: str, pairs: Sequence[Pair]) -> str:
    targets = list(dict.fromkeys(pair.target.rules for pair in pairs))
    of = {(pair.source.rules, pair.target.rules): pair for pair in pairs}
    named: Mapping[str, str] = {rules: _short(rules) for rules in targets}
    violations = [str(of[rules, rules].target.measures.order_violations) for rules in targets]
    rows = [
        f"### {script}\n",
        "| source | " + " | ".join(named[rules] for rules in targets) + " |",
        "|---|" + ":-:|" * len(targets),
        "| *recorded* | " + " | ".join(violations) + " |",
    ]
    for source in targets:
        rows.append(
            f"| {named[source]} | " + " | ".join(_cell(of[source, target]) for target in targets) + " |"
        )
    return "\n".join(rows)


def _cell(pair: Pair) -> str:
    if pair.predicted is None:
        mark = "-"
    elif pair.right:
        mark = "+" if pair.predicted else "."
    else:
        mark = "F" if pair.predicted else "M"
    split = 0 < pair.violating_seeds < len(pair.outcomes)
    text = f"{mark}{pair.violating_seeds}" if split else mark
    return f"({text})" if pair.source is pair.target else text


def _short(rules: str) -> str:
    release, _, variant = rules.partition("/")
    return f"{_SHORT.get(release, release)} {variant}"


def _listed(pairs: Sequence[Pair]) -> str:
    rows = [
        "| script | source | target | recorded violations | simulated, least to most of the seeds | |",
        "|---|---|---|---:|---:|---|",
    ]
    for pair in pairs:
        counts = [outcome.measures.order_violations for outcome in pair.outcomes]
        text = f"{min(counts)} to {max(counts)}" if counts else str(pair.problem)
        what = "control" if pair.source is pair.target else "right" if pair.right else "wrong"
        rows.append(
            f"| `{pair.source.script}` | {pair.source.rules} | {pair.target.rules} | "
            f"{pair.target.measures.order_violations} | {text} | {what} |"
        )
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, the picture and the coefficients; returns 1 where there are no recordings."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--only", default="", help="scripts whose names begin so; no coefficients are written then"
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="N sources of each script; no coefficients are written then"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep outcomes here, and take them from here"
    )
    parser.add_argument("--large", action="store_true", help="the large recordings too (minutes each)")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(argv)
    if not RECORDINGS.is_dir():
        print(f"no recordings beside the repository ({RECORDINGS}); nothing was written", file=sys.stderr)
        return 1
    seeds = range(options.seeds)
    pairs: list[Pair] = []
    large: list[Pair] = []
    for script, several in {**scripts(), **random_scripts()}.items():
        if script.startswith(options.only):
            chosen = _sampled(several, options.sample)
            pairs += pairs_of(several, seeds, chosen, options.keep)
            score = Score.of(pair for pair in pairs if pair.source.script == script)
            print(score.row(script), file=sys.stderr, flush=True)
    failover = [pair for several in failover_scripts().values() for pair in pairs_of(several, seeds)]
    for several in scripts(kinds=("large-",)).values() if options.large else ():
        large += pairs_of(several, range(1))
    changed, found = with_probabilities(pairs)
    advice = _advice(found) if not options.only and options.sample is None else None
    options.out.write_text(page(pairs, large, failover, advice), encoding="utf-8")
    if not options.only and options.sample is None:
        PLOT.write_text(what_if_calibration.plot(found), encoding="utf-8")
        what_if_calibration.write([known.trial for known in found], _RELEASES, COEFFICIENTS)
    print(Score.of(changed).row("all"))
    return 0


def _advice(found: Sequence[Judged]) -> str:
    """Measure how right advice is, with coefficients that the script of each recording did not take part in."""
    trials = [known.trial for known in found]

    def coefficients_of(script: str) -> dict[str, float]:
        return what_if_calibration.fitted([trial for trial in trials if trial.group != script])

    checked = list(what_if_advice.advised([*scripts().values(), *random_scripts().values()], coefficients_of))
    return f"{what_if_advice.summary(checked)}\n\n{what_if_advice.table(checked)}"


def _sampled(several: Sequence[Recorded], count: int | None) -> Callable[[Recorded], bool]:
    """Choose some sources, spread evenly over the rules; all of them for ``None``."""
    if count is None or count >= len(several):
        return lambda _: True
    chosen = {several[at * len(several) // count].rules for at in range(count)}
    return lambda recording: recording.rules in chosen


if __name__ == "__main__":
    sys.exit(main())
