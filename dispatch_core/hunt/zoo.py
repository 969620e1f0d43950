"""The zoo: known faults, holes and limits of brokers, each with the shortest schedule that shows it (``docs/zoo``).

An *exhibit* is a TOML file: what it is, the schedule in the words of ``schedule.describe``, and the verdict that each
release must get. ``verdict`` plays the schedule under the rules of a release.

>>> parse("x", '''
... title = "A consumer joins"
... links = []
... kind = "limit"
... text = ""
... keys = ["a", "b", "c"]
... steps = ["c1 joins with 1 permit"]
... [verdicts]
... ''').steps == (schedule.step(schedule.JOIN),)
True
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from dispatch_core.broker.profiles import Profile, first_releases, known_releases, resolve
from dispatch_core.broker.versions import PREVIEW_PIP_282, parse_version, text_of
from dispatch_core.errors import DispatchAuditError
from dispatch_core.hunt import schedule
from dispatch_core.hunt.causes import NAMES as CAUSES
from dispatch_core.hunt.promises import NAMES as PROMISES
from dispatch_core.hunt.search import AnyHunter
from dispatch_core.hunt.unkeyed import hunter_of

KINDS: Final = ("fault", "hole", "limit")
#: The verdict of a release that keeps every promise.
KEPT: Final = "kept"
_RELEASES: Final = sorted({*known_releases(), *first_releases("out_of_order_by_permits")})
#: The releases that get a verdict: every known one, the preview, and the next of lines whose tip has more (#26268).
RELEASES: Final = (
    *(text_of(version) for version in _RELEASES if version < (4, 0, 0)),
    PREVIEW_PIP_282,
    *(text_of(version) for version in _RELEASES if version >= (4, 0, 0)),
)
#: The copy of all exhibits, beside this file: the wheel has no documents.
COPY: Final = "exhibits.json"
_TO: Final = " to "
_AUTO_SPLIT: Final = "AUTO_SPLIT"


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A fault (a release mends it), a hole (none does) or a limit (documented), with its schedule.

    ``settings``: those of ``broker.conf`` under which it is played. ``verdicts``: promise and cause, joined by a dot →
    ranges of releases, such as ``4.0.0 to 4.0.6``; its own comes first. Releases that are not named keep every promise.
    """

    name: str
    title: str
    links: tuple[str, ...]
    kind: str
    text: str
    subscription_type: str
    settings: Mapping[str, int | bool]
    allow_out_of_order: bool
    keys: tuple[str, ...]
    steps: tuple[int, ...]
    verdicts: Mapping[str, tuple[str, ...]]
    key_shared_mode: str = _AUTO_SPLIT

    @property
    def expected(self) -> dict[str, str]:
        """Release → the verdict that it must get."""
        found = dict.fromkeys(RELEASES, KEPT)
        for verdict, ranges in self.verdicts.items():
            for text in ranges:
                found.update(dict.fromkeys(releases_of(text), verdict))
        return found

    def profile(self, release: str) -> Profile:
        """Return the rules of a release under the settings of the exhibit."""
        return resolve(
            release,
            self.settings,
            subscription_type=self.subscription_type,
            partition_index=0,
            key_shared_mode=self.key_shared_mode,
            allow_out_of_order=self.allow_out_of_order,
        )

    def hunter(self, release: str) -> AnyHunter:
        """Return a hunter that plays schedules under these rules."""
        return hunter_of(self.profile(release), self.keys)


def parse(name: str, text: str) -> Exhibit:
    """Read an exhibit; raises ``DispatchAuditError`` for what is missing, misspelt or no step."""
    try:
        return of_fields(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DispatchAuditError(f"{name}: {error}") from error


def of_fields(name: str, fields: Mapping[str, Any]) -> Exhibit:
    """Make an exhibit of the fields of its file; raises as ``parse`` does."""
    try:
        exhibit = Exhibit(
            name=name,
            title=fields["title"],
            links=tuple(fields["links"]),
            kind=fields["kind"],
            text=fields["text"].strip(),
            subscription_type=fields.get("subscription_type", "Key_Shared"),
            settings=fields.get("settings", {}),
            allow_out_of_order=bool(fields.get("allow_out_of_order", False)),
            key_shared_mode=fields.get("key_shared_mode", _AUTO_SPLIT),
            keys=tuple(fields["keys"]),
            steps=tuple(schedule.parse(step) for step in fields["steps"]),
            verdicts={verdict: tuple(ranges) for verdict, ranges in fields["verdicts"].items()},
        )
    except KeyError as error:
        raise DispatchAuditError(f"{name}: {error}") from error
    if exhibit.kind not in KINDS:
        raise DispatchAuditError(f"{name}: kind {exhibit.kind!r} is none of {', '.join(KINDS)}")
    foreign = [step for step in exhibit.steps if not schedule.is_of(exhibit.subscription_type, step)]
    if foreign:
        text = schedule.describe(foreign[0])
        raise DispatchAuditError(f"{name}: {text!r} is no step of a {exhibit.subscription_type} subscription")
    for verdict in exhibit.verdicts:
        promise, _, cause = verdict.partition(".")
        if promise not in PROMISES.values() or cause not in CAUSES:
            raise DispatchAuditError(f"{name}: {verdict!r} is no promise and cause")
    exhibit.expected  # noqa: B018 - raises for a range that is none
    return exhibit


def exhibits() -> tuple[Exhibit, ...]:
    """Return all exhibits, by name: those of ``docs/zoo``, of which the package has a copy."""
    text = (resources.files(__package__) / COPY).read_text(encoding="utf-8")
    return tuple(of_fields(name, fields) for name, fields in json.loads(text).items())


def copy_of(texts: Mapping[str, str]) -> str:
    """Return the copy that the package has of the exhibits' files: name → text."""
    fields = {name: tomllib.loads(text) for name, text in sorted(texts.items())}
    return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"


def releases_of(text: str) -> list[str]:
    """List the releases of a range.

    >>> releases_of("4.0.0 to 4.0.2"), releases_of("4.1.0"), releases_of("3.3.8 to 4.0.0")
    (['4.0.0', '4.0.1', '4.0.2'], ['4.1.0'], ['3.3.8', '3.3.9', '4.0.0-preview.1', '4.0.0'])
    """
    first, _, last = text.partition(_TO)
    if first not in RELEASES or (last or first) not in RELEASES:
        raise DispatchAuditError(f"{text!r} is no range of known releases")
    return [*RELEASES[RELEASES.index(first) : RELEASES.index(last or first) + 1]]


def ranges_of(releases: Sequence[str]) -> list[str]:
    """Return releases as ranges within their lines, a range as long as it can be.

    >>> ranges_of(["4.0.0", "4.0.1", "4.1.0", "4.2.1"])
    ['4.0.0 to 4.0.1', '4.1.0', '4.2.1']
    """
    found: list[list[str]] = []
    for release in releases:
        follows = found and RELEASES.index(found[-1][-1]) + 1 == RELEASES.index(release)
        if follows and _line(found[-1][-1]) == _line(release):
            found[-1].append(release)
        else:
            found.append([release])
    return [group[0] if len(group) == 1 else group[0] + _TO + group[-1] for group in found]


def _line(release: str) -> tuple[int | str, ...]:
    """Return what the releases of one range have in common."""
    return (release,) if release == PREVIEW_PIP_282 else parse_version(release)[:2]


def verdict(exhibit: Exhibit, release: str) -> str:
    """Play the schedule of an exhibit on a release; returns promise and cause joined by a dot, or ``KEPT``."""
    hunter = exhibit.hunter(release)
    find = hunter.play(exhibit.steps)
    return KEPT if find is None else f"{find.name}.{hunter.cause_of(find)}"


def verdicts(exhibit: Exhibit) -> dict[str, list[str]]:
    """Play an exhibit on every release; returns verdict → ranges of releases that get it."""
    found: dict[str, list[str]] = {}
    for release in RELEASES:
        found.setdefault(verdict(exhibit, release), []).append(release)
    return {text: ranges_of(releases) for text, releases in found.items()}


def text_of_exhibit(exhibit: Exhibit) -> str:
    """Return the file of an exhibit."""
    lines = [
        f"title = {_quoted(exhibit.title)}",
        f"links = {_listed(exhibit.links)}",
        f"kind = {_quoted(exhibit.kind)}",
        f'text = """\n{exhibit.text}\n"""',
        *([f"subscription_type = {_quoted(other)}"] if (other := _other_type(exhibit)) else []),
        *(["allow_out_of_order = true"] if exhibit.allow_out_of_order else []),
        *([f"key_shared_mode = {_quoted(mode)}"] if (mode := exhibit.key_shared_mode) != _AUTO_SPLIT else []),
        f"keys = {_listed(exhibit.keys)}",
        "steps = [",
        *(f"    {_quoted(schedule.describe(step))}," for step in exhibit.steps),
        "]",
        "",
        "[settings]",
        *(f"{name} = {json.dumps(value)}" for name, value in exhibit.settings.items()),
        "",
        "[verdicts]",
        *(f"{_quoted(name)} = {_listed(ranges)}" for name, ranges in exhibit.verdicts.items()),
    ]
    return "\n".join(lines) + "\n"


def _other_type(exhibit: Exhibit) -> str:
    """Return the type of the subscription, empty if it is Key_Shared."""
    return "" if exhibit.subscription_type == "Key_Shared" else exhibit.subscription_type


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _listed(texts: Sequence[str]) -> str:
    return f"[{', '.join(_quoted(text) for text in texts)}]"


def page(exhibits: Sequence[Exhibit]) -> str:
    """Return the index page of the zoo."""
    lines = [_HEAD]
    for exhibit in exhibits:
        name, (own, ranges) = exhibit.name, next(iter(exhibit.verdicts.items()))
        links = ", ".join(f"[{_short(link)}]({link})" for link in exhibit.links)
        other = f"{_other_type(exhibit)}: " if _other_type(exhibit) else ""
        lines.append(
            f"| {other}[{exhibit.title}]({name}.toml) | {links} | `{own}` | {len(exhibit.steps)} "
            f"| {', '.join(ranges) or 'none'} | {mended_in(exhibit)} |"
        )
    return "\n".join(lines) + "\n"


def _short(link: str) -> str:
    """Name a link: ``#24736`` of a pull request or an issue."""
    last = link.rstrip("/").rpartition("/")[2]
    return f"#{last}" if last.isdecimal() else last.removesuffix(".md")


def mended_in(exhibit: Exhibit) -> str:
    """Say in which releases the schedule breaks nothing any more, after one in which it did."""
    if exhibit.kind != "fault":
        return "works as documented" if exhibit.kind == "limit" else "none known here"
    expected = exhibit.expected
    pairs = itertools.pairwise(RELEASES)
    mended = [later for earlier, later in pairs if expected[earlier] != KEPT == expected[later]]
    return ", ".join(mended) or "none known here"


_HEAD: Final = """# The zoo: known faults of brokers, each with the shortest schedule that shows it

Each row is a file: a fault (a release mends it), a hole (none does) or a limit (documented), with the schedule of clients
that shows it, in the words of [hunt](../hunt.md), and the verdict that every known release must get. Found by
`dispatch-audit hunt` and shrunk until no step can be left out; `tests/dispatch_core/hunt/test_zoo.py` plays every file on
every release. `dispatch-audit hunt --broker-version V --play docs/zoo/*.toml` plays them on one. A new exhibit: its file
here, then `python -m dispatch_core.cli.zoo docs/zoo` writes this page and the package's copy of all files.

| what | links | breaks | steps | in | mended in |
|---|---|---|---|---|---|"""
