"""Compare a vector file with the core: every line, every release it holds for, step by step.

Releases with equal rules for a line are played once and counted separately.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.golden import draining, failover, hashes, selectors
from dispatch_core.golden.vectors import VectorFile, VectorLine

#: Fields of a line that identify the history among those of a seed.
_HISTORY: Final[tuple[str, ...]] = ("style", "range_size", "replica_points", "config", "variant")
#: Compared only where the vector has it; all other fields must be there.
_OPTIONAL: Final[tuple[str, ...]] = ("ranges_after",)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One step in which a vector and the core differ. ``step`` counts from 0, ``line`` from 1 (the header)."""

    version: str
    line: int
    seed: int
    history: dict[str, Any]
    step: int
    field: str
    expected: Any  # the answer of the broker's class
    computed: Any

    def as_json(self) -> dict[str, Any]:
        """Return an object of ``--json``."""
        return {
            "version": self.version,
            "line": self.line,
            "seed": self.seed,
            **self.history,
            "step": self.step,
            "field": self.field,
            "expected": self.expected,
            "computed": self.computed,
        }


@dataclass(slots=True)
class Judgement:
    """Outcome of one file. ``steps``: steps of all judged lines times releases."""

    file: str
    kind: str
    versions: tuple[str, ...]
    steps: int = 0
    exact: int = 0
    mismatched: int = 0
    first_mismatch: Mismatch | None = None
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return an object of ``--json``."""
        first = self.first_mismatch
        return {
            "file": self.file,
            "kind": self.kind,
            "versions": list(self.versions),
            "steps": self.steps,
            "exact": self.exact,
            "mismatched": self.mismatched,
            "first_mismatch": None if first is None else first.as_json(),
            "problems": self.problems,
        }


@dataclass(frozen=True, slots=True)
class _Kind:
    """The way to play histories of one kind. ``rules``: a release's rules for a line; None = it has none.

    ``play`` gets these rules, or, ``by_version``, a release that has them.
    """

    rules: Callable[[str, dict[str, Any]], Hashable]
    play: Callable[[Any, dict[str, Any]], Iterator[dict[str, Any]]]
    by_version: bool = False


_KINDS: Final[dict[str, _Kind]] = {
    "hash": _Kind(hashes.rules, hashes.play),
    "autosplit": _Kind(selectors.auto_split_rules, selectors.play),
    "consistent": _Kind(selectors.ring_rules, selectors.play),
    "consistent-classic": _Kind(selectors.classic_ring_rules, selectors.play),
    "sticky": _Kind(selectors.sticky_rules, selectors.play),
    "failover": _Kind(failover.rules, failover.play, by_version=True),
    "impacted": _Kind(selectors.impacted_rules, selectors.play_impacted),
    "draining": _Kind(draining.rules, draining.play),
}


def judge(file: VectorFile, progress: Callable[[int, int], None] | None = None) -> Judgement:
    """Play every line of ``file``. ``progress``: called with the number of lines done and of all lines."""
    kind = _KINDS[file.kind]
    result = Judgement(file.name, file.kind, file.versions, problems=list(file.problems))
    known: dict[tuple[str, str], Hashable] = {}
    unknown: set[str] = set()
    for done, line in enumerate(file.lines):
        for rules, versions in _by_rules(kind, file, line, known, unknown, result.problems).items():
            asked = versions[0] if kind.by_version else rules
            _compare(result, line, versions, kind.play(asked, line.values))
        if progress is not None:
            progress(done + 1, len(file.lines))
    return result


def _by_rules(
    kind: _Kind,
    file: VectorFile,
    line: VectorLine,
    known: dict[tuple[str, str], Hashable],
    unknown: set[str],
    problems: list[str],
) -> dict[Hashable, list[str]]:
    """The file's releases by the rules they have for a line; one without rules is a problem, reported once."""
    out: dict[Hashable, list[str]] = {}
    names = (*_HISTORY[1:4], "partition_index", "consistent_hashing_flag")
    config = json.dumps([line.values.get(name) for name in names])
    for version in file.versions:
        if (version, config) not in known:
            try:
                known[version, config] = kind.rules(version, line.values)
            except DispatchAuditError as error:
                known[version, config] = None
                if version not in unknown:
                    problems.append(f"{file.name}:{line.number}: version {version[:40]}: {error}; not judged")
                unknown.add(version)
        rules = known[version, config]
        if rules is not None:
            out.setdefault(rules, []).append(version)
        elif version not in unknown:
            unknown.add(version)
            problems.append(f"{file.name}:1: release {version} has no {file.kind}; not judged for it")
    return out


def _compare(
    result: Judgement, line: VectorLine, versions: list[str], answers: Iterator[dict[str, Any]]
) -> None:
    steps = line.values.get("steps", [line.values])
    for number, (step, answer) in enumerate(zip(steps, answers, strict=True)):
        wrong = next((name for name, value in answer.items() if not _agrees(step, name, value)), None)
        result.steps += len(versions)
        if wrong is None:
            result.exact += len(versions)
            continue
        result.mismatched += len(versions)
        if result.first_mismatch is None:
            history = {name: line.values[name] for name in _HISTORY if name in line.values}
            result.first_mismatch = Mismatch(
                versions[0], line.number, line.values["seed"], history, number, wrong, step.get(wrong), answer[wrong]
            )  # fmt: skip


def _agrees(step: dict[str, Any], name: str, value: Any) -> bool:
    if name not in step:
        return name in _OPTIONAL
    recorded = step[name]
    # Python takes true for 1; JSON does not, and a vector means what it says.
    return recorded == value and json.dumps(recorded, sort_keys=True) == json.dumps(value, sort_keys=True)
