"""Known faults and limits of brokers, as data (``known_issues.toml``), and the page that is made from them.

An issue matches an answer if it has the answer's symptom, the subscription's type and dispatcher, and if it is in the
release. Without a release, those that the fields of the statistics leave open are taken: ``drainingHashesCount`` is of 4.x.

>>> [issue.id for issue in known_issues() if "draining_hash.counted_twice" in issue.symptoms]
[24736]
>>> issue = next(issue for issue in known_issues() if issue.id == 24736)
>>> issue.affects((4, 0, 6)), issue.affects((4, 0, 7)), issue.affects((3, 0, 17)), issue.mended_text
(True, False, False, '4.0.7, 4.1.1, 4.2.0')
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from dispatch_core.broker.profiles import contains, first_releases, known_releases
from dispatch_core.broker.versions import Line, Version, parse_version, reached, text_of
from dispatch_core.errors import ProfileError

#: First major release with draining hashes.
_DRAINING: Final = 4


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """An issue; the fields are described in ``known_issues.toml``."""

    id: int
    title: str
    links: tuple[str, ...]
    kind: str
    symptoms: tuple[str, ...]
    types: tuple[str, ...]
    dispatcher: str
    begins_with: str | None
    begins_until: str | None
    mended_by: str | Mapping[Line, int] | None
    shows: str
    log: str
    cure: str

    def affects(self, version: Version) -> bool:
        """True if the release has it."""
        if self.begins_until is not None:
            return contains(version, self.begins_until)
        begun = self.begins_with is None or contains(version, self.begins_with)
        if isinstance(self.mended_by, str):
            return begun and not contains(version, self.mended_by)
        return begun and not reached(version, self.mended_by or {})

    @property
    def mended_in(self) -> list[Version]:
        """First release of each line without it; empty = none has been."""
        if self.begins_until is not None:
            return first_releases(self.begins_until, without=True)
        if isinstance(self.mended_by, str):
            return first_releases(self.mended_by)
        return [(*line, patch) for line, patch in sorted((self.mended_by or {}).items())]

    @property
    def mended_text(self) -> str:
        """The releases that mend it, or that none does."""
        if self.kind == "limit":
            return "works as documented"
        known = known_releases()
        texts = [text_of(version) + ("" if version in known else " (next)") for version in self.mended_in]
        return ", ".join(texts) or "none known here"

    @property
    def affected_text(self) -> str:
        """The known releases that have it, as ranges within each line."""
        lines: dict[Line, list[int]] = {}
        for version in known_releases():
            if self.affects(version):
                lines.setdefault(version[:2], []).append(version[2])
        ranges = [
            f"{major}.{minor}.{patches[0]}"
            + (f" to {major}.{minor}.{patches[-1]}" if len(patches) > 1 else "")
            for (major, minor), patches in lines.items()
        ]
        return ", ".join(ranges) or "none of the known releases"


@cache
def known_issues() -> tuple[KnownIssue, ...]:
    """Read all issues, in the file's order."""
    text = resources.files("dispatch_core.diagnose").joinpath("known_issues.toml").read_text(encoding="utf-8")
    return tuple(_issue(fields) for fields in tomllib.loads(text)["issue"])


def _issue(fields: dict[str, Any]) -> KnownIssue:
    mended = fields.get("mended_by")
    if isinstance(mended, dict):
        mended = {
            (int(line.partition(".")[0]), int(line.partition(".")[2])): patch
            for line, patch in mended.items()
        }
    return KnownIssue(
        fields["id"],
        fields["title"],
        tuple(fields["links"]),
        fields["kind"],
        tuple(fields["symptoms"]),
        tuple(fields["types"]),
        fields["dispatcher"],
        fields.get("begins_with"),
        fields.get("begins_until"),
        mended,
        fields["shows"],
        fields["log"],
        fields["cure"],
    )


def issues_as_json(identifiers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of ``known_issues`` in ``diagnose --json``."""
    return [
        {
            "id": identifier,
            "title": issue.title,
            "links": list(issue.links),
            "kind": issue.kind,
            "releases": issue.affected_text,
            "mended_in": [text_of(version) for version in issue.mended_in],
            "cure": issue.cure,
        }
        for identifier in identifiers
        for issue in [issue_of(identifier)]
    ]


def issue_of(identifier: str) -> KnownIssue:
    """Return the issue of an answer's ``#number``."""
    return next(issue for issue in known_issues() if f"#{issue.id}" == identifier)


def matching(
    symptoms: Sequence[str],
    *,
    kind: str | None,
    by_read_position: bool | None,
    broker_version: str | None,
    is_4x: bool,
) -> tuple[str, ...]:
    """Return the issues that an answer with these symptoms may be, those of a detail first, as ``#number``.

    Args:
        symptoms: ``RULE`` and ``RULE.DETAIL``.
        kind: the subscription's type; ``None`` = not known.
        by_read_position: the dispatcher is that of 3.x, or the classic one; ``None`` = not known.
        broker_version: the release; ``None`` = not known.
        is_4x: without a release: it is 4.x or later.
    """
    releases = _releases(broker_version, is_4x=is_4x)
    found = [
        issue
        for issue in known_issues()
        if set(issue.symptoms) & set(symptoms)
        and (kind is None or kind in issue.types)
        and _is_of_dispatcher(issue, by_read_position)
        and any(issue.affects(version) for version in releases)
    ]
    found.sort(key=lambda issue: not any("." in symptom for symptom in set(issue.symptoms) & set(symptoms)))
    return tuple(f"#{issue.id}" for issue in found)


def _is_of_dispatcher(issue: KnownIssue, by_read_position: bool | None) -> bool:
    if issue.dispatcher == "any" or by_read_position is None:
        return True
    return (issue.dispatcher == "classic") is by_read_position


def _releases(broker_version: str | None, *, is_4x: bool) -> list[Version]:
    """The release, or those that are left open."""
    if broker_version is not None:
        try:
            return [parse_version(broker_version)]
        except ProfileError:
            return []
    return [version for version in known_releases() if (version[0] >= _DRAINING) is is_4x]


def page() -> str:
    """Return docs/known-issues.md."""
    rows = [
        f"| [#{issue.id}](#{_anchor(issue)}) | {issue.title} | {issue.affected_text if issue.kind == 'fault' else '–'} | "
        f"{issue.mended_text} |"
        for issue in known_issues()
    ]
    parts = [
        _HEAD,
        "| | | releases | mended in |\n|---|---|---|---|\n" + "\n".join(rows),
        *(_section(issue) for issue in known_issues()),
    ]
    return "\n\n".join(parts) + "\n"


_HEAD: Final = """# Known issues: stalls, leaks and limits of the dispatchers

<!-- Made from dispatch_core/diagnose/known_issues.toml:
     python -m dispatch_core.diagnose.known_issues > docs/known-issues.md -->

[`dispatch-audit diagnose`](diagnose.md) names the issues that look like what the statistics show and that are in the
release. "Releases" are those whose rules this project knows ([settings.md](settings.md)); earlier ones may have an issue,
too. "(next)": mended on that line after its newest release that is known here."""


def _title(issue: KnownIssue) -> str:
    return f"#{issue.id}: {issue.title}"


def _anchor(issue: KnownIssue) -> str:
    kept = "".join(c for c in _title(issue).lower() if c.isalnum() or c in "_- ")
    return kept.replace(" ", "-")


def _section(issue: KnownIssue) -> str:
    links = ", ".join(f"[#{link.rpartition('/')[2]}]({link})" for link in issue.links)
    where = "any dispatcher" if issue.dispatcher == "any" else f"{issue.dispatcher} dispatcher"
    rows = [
        ("links", links),
        (
            "subscriptions",
            f"{', '.join(issue.types)}; {where}" + ("" if issue.dispatcher != "classic" else ", and 3.x"),
        ),
        ("statistics show", issue.shows),
        ("a log shows", issue.log),
        ("what helps", issue.cure),
    ]
    if issue.symptoms:
        rows.insert(2, ("answers", ", ".join(f"`{symptom}`" for symptom in issue.symptoms)))
    table = "\n".join(f"| {name} | {text} |" for name, text in rows)
    return f"## {_title(issue)}\n\n| | |\n|---|---|\n{table}"


if __name__ == "__main__":
    print(page(), end="")
