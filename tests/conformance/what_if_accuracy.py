"""Measure how often ``what-if`` is right: recordings of one client script under many rules predict each other.

``make accuracy`` writes ``bench/results/what-if-accuracy.md``. A *pair* is two recordings of one script: with the load and
clients of the source the target's rules are simulated. The prediction is whether the target has order violations
(``out_of_order`` or ``split_key``). The source simulated under its own rules is the control, and no pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dispatch_core.audit.unsent_entries import lowest
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.what_if.compare import Confidence, FirstConsumers, Outcome, confidence_of
from dispatch_core.what_if.measure import Measures, measures
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.run import deliveries_of, simulate

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDINGS: Final = ROOT.parent / "shared" / "recordings"
PAGE: Final = ROOT / "bench" / "results" / "what-if-accuracy.md"
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
        return _goes_apart(self.measures)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prediction of ``target`` from ``source``. ``problem``: the reason if there is none, which counts as wrong."""

    source: Recorded
    target: Recorded
    outcomes: tuple[Outcome, ...]
    confidence: Confidence | None
    problem: str | None = None

    @property
    def violating_seeds(self) -> int:
        """Seeds that have order violations, or such hand-overs."""
        return sum(_goes_apart(outcome.measures) for outcome in self.outcomes)

    @property
    def predicted(self) -> bool | None:
        """True if at least half of the seeds predict order violations; None without a simulation."""
        return 2 * self.violating_seeds >= len(self.outcomes) if self.outcomes else None

    @property
    def right(self) -> bool:
        """True if the prediction is what was recorded."""
        return self.predicted is self.target.violates

    @property
    def within_a_release(self) -> bool:
        """True if one release recorded both."""
        return self.source.rules.partition("/")[0] == self.target.rules.partition("/")[0]


def _goes_apart(measured: Measures) -> bool:
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
    several: Sequence[Recorded], seeds: Sequence[int], sources: Callable[[Recorded], bool] = lambda _: True
) -> Iterator[Pair]:
    """All ordered pairs of one script from some ``sources``, and the controls."""
    for source in filter(sources, several):
        try:
            load = load_of(source.log)
            deliveries = deliveries_of(load)
        except DispatchAuditError as error:
            yield from (Pair(source, target, (), None, str(error)) for target in several)
            continue
        found: dict[str, tuple[Outcome, ...] | str] = {}
        for target in several:
            try:
                profile = profile_of(target.log)
                there = replace(load, topic=target.log.topic)  # Failover's ring places topics by name
                logs = [simulate(there, profile, seed=seed, deliveries=deliveries) for seed in seeds]
                found[target.rules] = tuple(
                    _outcome(source, log, seed) for log, seed in zip(logs, seeds, strict=True)
                )
            except DispatchAuditError as error:
                found[target.rules] = str(error)
        control = found[source.rules]
        for target in several:
            outcomes = found[target.rules]
            if isinstance(outcomes, str):
                yield Pair(source, target, (), None, outcomes)
                continue
            controls = () if isinstance(control, str) else control
            yield Pair(source, target, outcomes, confidence_of(outcomes, [controls], [source.measures]))


def _outcome(source: Recorded, log: DispatcherLog, seed: int) -> Outcome:
    audit = audit_whole(log, rules=False)
    there = FirstConsumers.of(audit.deliveries)
    first = source.first
    begin = lowest(first.ledger, first.entry) if len(first.ledger) else None
    return Outcome(seed, measures(log, audit, begin=begin), first.shared_with(there))


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


def page(pairs: Sequence[Pair], seeds: int, large: Sequence[Pair] = (), failover: Sequence[Pair] = ()) -> str:
    """The page as Markdown."""
    parts = [
        _INTRODUCTION.format(
            pairs=Score.of(pairs).pairs, seeds=f"{seeds} seeds" if seeds > 1 else "one seed"
        ),
        _summary(pairs),
    ]
    parts += ["## By confidence", _by_confidence(pairs), "## By script", _by_script(pairs)]
    parts += ["## Waits", _waits(pairs)]
    parts += ["## Misses", _misses(pairs), "## Every pair", _EVERY]
    for script in dict.fromkeys(pair.source.script for pair in pairs):
        parts.append(_matrix(script, [pair for pair in pairs if pair.source.script == script], seeds))
    if failover:
        parts += ["## Failover, modulo and ring", _listed(failover)]
    if large:
        parts += ["## Large recordings", _listed(large)]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION: Final = """# How often what-if is right

Written by `make accuracy` from the recordings beside the repository; do not edit.

Each client script was recorded under several rules and releases. A pair takes load and clients from one recording (the
source, without its `sent` lines) and the rules from another (the target). It predicts whether the target has order
violations (`out_of_order` or `split_key`). Each prediction comes from {seeds}; violations are predicted if at least
half of the simulations have some. There are {pairs} pairs. The simulation under the source's own rules is the control
and does not count as a pair.

Most targets have no violation, so the answer "always clean" is right most of the time. Accuracy alone therefore says
little: see also how many of the violating targets are found (recall), and how many of the alarms are true (precision)."""

_EVERY: Final = """Rows are sources, columns are targets. `.` clean and predicted clean, `+` violations and predicted,
`M` missed, `F` false alarm, `-` not simulated. A figure counts the seeds with violations where the seeds
disagree. The control stands in parentheses. The row *recorded* counts the order violations of each recording."""


def _summary(pairs: Sequence[Pair]) -> str:
    across = [pair for pair in pairs if not pair.within_a_release]
    classic = [pair for pair in pairs if ("classic" in pair.source.rules) != ("classic" in pair.target.rules)]
    rows = [
        _SCORES,
        Score.of(pairs).row("**all**"),
        Score.of(pair for pair in pairs if pair.within_a_release).row("within a release"),
        Score.of(across).row("from one release to another"),
        Score.of(classic).row("from classic to not, and back"),
        always_clean(pairs).row('"always clean"'),
        copied(pairs).row('"as it was recorded"'),
    ]
    return "\n".join(rows)


def _by_confidence(pairs: Sequence[Pair]) -> str:
    rows = [_SCORES]
    for level in ("high", "medium", "low"):
        some = [pair for pair in pairs if pair.confidence is not None and pair.confidence.level == level]
        rows.append(Score.of(some).row(level))
    return "\n".join(rows)


def _by_script(pairs: Sequence[Pair]) -> str:
    names = dict.fromkeys(pair.source.script for pair in pairs)
    return "\n".join(
        [_SCORES, *(Score.of(p for p in pairs if p.source.script == name).row(f"`{name}`") for name in names)]
    )


def _waits(pairs: Sequence[Pair]) -> str:
    """Compare the predicted waits with the recorded ones."""
    rows = [
        "| predicted against recorded | within 10 % or 5 ms | within 25 % or 20 ms | within a factor of 2 or 20 ms |",
        "|---|---:|---:|---:|",
    ]
    for name in ("p50", "p99", "max"):
        both = []
        for pair in pairs:
            if pair.source is pair.target or not pair.outcomes:
                continue
            predicted = sorted(getattr(outcome.measures.wait_ms, name) or 0.0 for outcome in pair.outcomes)
            known = getattr(pair.target.measures.wait_ms, name)
            if known is not None:
                both.append((predicted[len(predicted) // 2], known))
        if not both:
            continue
        near = [
            sum(
                abs(predicted_ms - known_ms) <= max(share * known_ms, least)
                for predicted_ms, known_ms in both
            )
            / len(both)
            for share, least in ((0.10, 5), (0.25, 20))
        ]
        twice = sum(
            max(pair_ms) <= 2 * min(pair_ms) or abs(pair_ms[0] - pair_ms[1]) <= 20 for pair_ms in both
        ) / len(both)
        rows.append(f"| wait {name} | {near[0]:.1%} | {near[1]:.1%} | {twice:.1%} |")
    rows.append(
        "\nThe scripts' own timelines differ by up to 300 ms between recordings: their driver waits for what it was sent."
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
            f"{pair.source.rules} ({pair.violating_seeds} of {len(pair.outcomes)})"
            if pair.outcomes
            else f"{pair.source.rules} ({pair.problem})"
            for pair in some
        )
        rows.append(f"| `{script}` {rules} | {some[0].target.measures.order_violations} | {text} |")
    return "\n".join(rows) if wrong else "None."


def _matrix(script: str, pairs: Sequence[Pair], seeds: int) -> str:
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
            f"| {named[source]} | "
            + " | ".join(_cell(of[source, target], seeds) for target in targets)
            + " |"
        )
    return "\n".join(rows)


def _cell(pair: Pair, seeds: int) -> str:
    if pair.predicted is None:
        mark = "-"
    elif pair.right:
        mark = "+" if pair.predicted else "."
    else:
        mark = "F" if pair.predicted else "M"
    split = 0 < pair.violating_seeds < seeds
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
    """Write the page; returns 1 where there are no recordings."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="designed-", help="scripts whose names begin so")
    parser.add_argument("--large", action="store_true", help="the large recordings too (minutes each)")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(argv)
    if not RECORDINGS.is_dir():
        print(f"no recordings beside the repository ({RECORDINGS}); nothing was written", file=sys.stderr)
        return 1
    seeds = range(options.seeds)
    pairs: list[Pair] = []
    large: list[Pair] = []
    for script, several in scripts(kinds=(options.only,)).items():
        pairs += pairs_of(several, seeds)
        score = Score.of(pair for pair in pairs if pair.source.script == script)
        print(score.row(script), file=sys.stderr, flush=True)
        # Written after each step, so that an early end keeps all measurements.
        options.out.write_text(page(pairs, len(seeds)), encoding="utf-8")
    failover = [pair for several in failover_scripts().values() for pair in pairs_of(several, seeds)]
    for several in scripts(kinds=("large-",)).values() if options.large else ():
        large += pairs_of(several, range(1))
    options.out.write_text(page(pairs, len(seeds), large, failover), encoding="utf-8")
    print(Score.of(pairs).row("all"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
