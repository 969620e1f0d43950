"""Sum up the results of seeds as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tests.soak.judging import Result
from tests.soak.script import class_of, is_quiet

_HEAD = ("", "seeds", "decisions", "divergent", "uncertain", "clients differ", "not judged", "failed")


def lines(results: Sequence[Result]) -> list[str]:
    """Return the table by class of script, quiet and racing, then by class of decisions."""
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda row: (class_of(row.name), not is_quiet(row.name))):
        how = "quiet" if is_quiet(result.name) else "racing"
        groups.setdefault(f"{class_of(result.name)}, {how}", []).append(result)
    rows = [_HEAD, *(_row(name, group) for name, group in groups.items())]
    for how, is_so in (("quiet", True), ("racing", False)):
        rows.append(_row(f"all {how}", [row for row in results if is_quiet(row.name) == is_so]))
    return [
        *_aligned(rows),
        "",
        *_aligned([("class", "decisions", "divergent", "uncertain"), *_classes(results)]),
    ]


def _row(name: str, group: Sequence[Result]) -> tuple[str, ...]:
    decisions = sum(result.decisions for result in group)
    uncertain = sum(result.uncertain for result in group)
    return (
        name,
        f"{len(group):,}",
        f"{decisions:,}",
        f"{sum(result.divergent for result in group):,}",
        _share(uncertain, decisions),
        _count(group, lambda result: bool(result.disagreements)),
        _count(group, lambda result: result.not_judged is not None),
        _count(group, lambda result: result.failure is not None),
    )


def _classes(results: Iterable[Result]) -> list[tuple[str, ...]]:
    sums: dict[str, list[int]] = {}
    for result in results:
        for name, counts in result.classes.items():
            sums[name] = [a + b for a, b in zip(sums.get(name, [0, 0, 0]), counts, strict=True)]
    return [
        (name, f"{decisions:,}", f"{divergent:,}", _share(uncertain, decisions))
        for name, (decisions, uncertain, divergent) in sorted(sums.items())
        if decisions
    ]


def _count(group: Sequence[Result], holds: Callable[[Result], bool]) -> str:
    return str(sum(holds(result) for result in group))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f} %" if whole else "-"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]
