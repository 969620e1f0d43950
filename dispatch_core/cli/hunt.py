"""``dispatch-audit hunt``: search client schedules for the shortest ones that break a promise of a release."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.broker import settings
from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.cli import CLEAN
from dispatch_core.cli.recordings import DAY_S, check_unoccupied, progress, seconds
from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from dispatch_core.hunt.plain import PlainHunter
    from dispatch_core.hunt.search import Find, Hunter

_FOUND: Final = 1
_BUDGET_S: Final = 60.0
#: What may be asked for → the promises of ``hunt.promises``, by their names.
_PROMISES: Final = {
    "order": ("split_key", "out_of_order"),
    "duplicates": ("double_outstanding",),
    "stuck": ("stuck",),
    "starved": ("starved",),
    "leak": ("leak",),
}
#: Names of ``hunt.schedule.GROUPS``, for options that are parsed before compiled code is imported.
_ALSO: Final = ("batches", "hangs", "moves", "races")
#: Keys among which three are chosen, and chunks of schedules that are played with the same three.
_MANY_KEYS: Final = 256
_CHUNKS_PER_KEYS: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``hunt``."""
    parser.description = (
        "Search schedules of clients (joins, leaves, permits, acknowledgements, redelivery requests, reads that complete "
        "late) for those that break a promise of a release, under the rules that `dispatch-audit verify` checks. Each find "
        "is shrunk until no step can be left out. The same seed plays the same schedules."
    )
    parser.add_argument(
        "--broker-version", metavar="VERSION", required=True, help="the release to search, such as 4.2.4"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="a broker.conf setting, such as subscriptionKeySharedUseConsistentHashing=false; may be given again",
    )
    parser.add_argument(
        "--subscription-type",
        choices=("Key_Shared", "Failover", "Shared"),
        default="Key_Shared",
        help="of the subscription (default: Key_Shared); the others are hunted some hundred times slower",
    )
    parser.add_argument(
        "--allow-out-of-order", action="store_true", help="consumers ask for allowOutOfOrderDelivery"
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        choices=_ALSO,
        help="further steps of schedules, see docs/hunt.md; may be given again",
    )
    parser.add_argument(
        "--pass-over",
        action="append",
        default=[],
        metavar="CAUSE",
        help="count schedules that end by this known cause, and keep none of them; may be given again",
    )
    parser.add_argument(
        "--promise",
        action="append",
        choices=sorted(_PROMISES),
        help="search schedules that break this promise only; may be given again (default: all)",
    )
    parser.add_argument(
        "--budget",
        type=seconds(DAY_S),
        default=_BUDGET_S,
        metavar="SECONDS",
        help="stop after so long (default: 60)",
    )
    parser.add_argument(
        "--schedules", type=_count, metavar="N", help="stop after so many schedules, however long that takes"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="begin the sequence of schedules here (default: 0)"
    )
    parser.add_argument(
        "--play",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="search nothing: play the schedules of these files of docs/zoo, each under its own settings",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write log, scripts and a bug report of each find into this folder",
    )
    parser.add_argument(
        "--json", action="store_true", help="JSON Lines: one object per find, then the totals"
    )


def _count(text: str) -> int:
    if not text.isdigit() or not int(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of schedules above 0")
    return int(text)


@dataclass(slots=True)
class _Group:
    """The shortest find of a cause, with the keys of its schedule, and how often the cause was found."""

    find: Find
    keys: tuple[str, ...]
    times: int = 1


@dataclass(slots=True)
class _Hunt:
    """The numbers of what was played, and the finds so far."""

    groups: dict[tuple[int, str], _Group] = field(default_factory=dict)
    passed_over: Counter[str] = field(default_factory=Counter)
    played: int = 0
    steps: int = 0
    keys: int = 0
    seconds: float = 0.0


def run(options: argparse.Namespace) -> int:
    """Hunt; returns 0 nothing was found, 1 a promise can be broken."""
    profile = resolve(
        options.broker_version,
        settings.given(options.settings),
        subscription_type=options.subscription_type,
        partition_index=0,
        allow_out_of_order=options.allow_out_of_order,
    )
    for warning in profile.warnings:
        print(warning, file=sys.stderr)
    _check_causes(options.pass_over)
    if options.subscription_type != "Key_Shared" and (options.also or options.out):
        raise DispatchAuditError("--also and --out are for Key_Shared subscriptions only")
    if options.play:
        return _play(options)
    if options.out is not None:
        check_unoccupied(options.out)
    hunt = _search(profile, options)
    groups = sorted(hunt.groups.values(), key=lambda group: (len(group.find.steps), group.find.group))
    written = [_write(profile, group, number, options.out) for number, group in enumerate(groups, 1)]
    if options.json:
        for group, files in zip(groups, written, strict=True):
            print(json.dumps(_as_json(group, files)))
        print(json.dumps(_totals(profile, hunt)))
    else:
        _print(profile, hunt, groups, written)
    return _FOUND if groups else CLEAN


def _play(options: argparse.Namespace) -> int:
    """Play the schedules of files, and say which break a promise of the release."""
    from dispatch_core.hunt import zoo

    found = []
    for path in options.play:
        exhibit = zoo.parse(path.stem, path.read_text(encoding="utf-8"))
        verdict = zoo.verdict(exhibit, options.broker_version)
        found.append(verdict)
        expected = exhibit.expected.get(options.broker_version)
        if options.json:
            row = {"exhibit": exhibit.name, "title": exhibit.title, "verdict": verdict, "expected": expected}
            print(json.dumps(row))
        else:
            other = "" if expected in (None, verdict) else f" (expected: {expected})"
            print(f"{exhibit.name}: {verdict}{other}")
    return CLEAN if all(verdict == zoo.KEPT for verdict in found) else _FOUND


def _check_causes(names: Sequence[str]) -> None:
    """Raise ``DispatchAuditError`` for a name that is no cause."""
    from dispatch_core.hunt.causes import NAMES

    for name in names:
        if name not in NAMES:
            raise DispatchAuditError(f"--pass-over {name}: not one of {', '.join(sorted(NAMES))}")


def _search(profile: Profile, options: argparse.Namespace) -> _Hunt:
    """Play schedules until the budget is used up, or so many are played."""
    wanted = {name for promise in options.promise or _PROMISES for name in _PROMISES[promise]}
    hunt = _Hunt()
    began = time.monotonic()
    for hunter in _hunters(profile, options, wanted):
        hunt.keys += 1
        for _ in range(_CHUNKS_PER_KEYS):
            find = hunter.random()
            if find is not None:
                _note(hunt, hunter, find, options.pass_over)
            hunt.seconds = time.monotonic() - began
            played = hunt.played + hunter.played
            progress(f"{played:,} schedules, {len(hunt.groups)} found")
            if hunt.seconds >= options.budget or played >= (options.schedules or played + 1):
                progress("")
                return _counted(hunt, hunter)
        _counted(hunt, hunter)
    raise AssertionError("there is always another seed")


def _counted(hunt: _Hunt, hunter: Hunter | PlainHunter) -> _Hunt:
    """Add what a hunter has played."""
    hunt.played += hunter.played
    hunt.steps += hunter.steps
    hunt.passed_over += hunter.passed_over
    return hunt


def _hunters(
    profile: Profile, options: argparse.Namespace, wanted: set[str]
) -> Iterator[Hunter | PlainHunter]:
    """Yield hunters for three keys each, without end; the same seed yields the same ones."""
    from dispatch_core.hunt.plain import PlainHunter
    from dispatch_core.hunt.search import Hunter

    seed = options.seed
    while options.subscription_type != "Key_Shared":
        yield PlainHunter(profile, seed=seed, wanted=wanted, pass_over=options.pass_over)
        seed += 1
    while True:
        keys = random.Random(seed).sample(range(_MANY_KEYS), 3)  # noqa: S311 - no secret
        yield Hunter(
            profile,
            [f"key-{key}" for key in keys],
            seed=seed,
            wanted=wanted,
            groups=options.also,
            pass_over=options.pass_over,
        )
        seed += 1


def _note(hunt: _Hunt, hunter: Hunter | PlainHunter, find: Find, pass_over: Sequence[str]) -> None:
    """Shrink a find, and keep it if it is the shortest of its cause and that is none to pass over."""
    shrunk = hunter.shrink(find)
    if shrunk.cause in pass_over:
        hunt.passed_over[shrunk.cause] += 1
        return
    group = hunt.groups.get(shrunk.group)
    if group is None:
        hunt.groups[shrunk.group] = _Group(shrunk, hunter.keys)
        return
    group.times += 1
    if len(shrunk.steps) < len(group.find.steps):
        group.find, group.keys = shrunk, hunter.keys


def _sentences(group: _Group) -> list[str]:
    """Say what happens, step by step, with the keys of the schedule."""
    from dispatch_core.hunt.schedule import describe

    texts = [describe(step) for step in group.find.steps]
    for number, key in enumerate(group.keys, 1):
        texts = [text.replace(f"key k{number} ", f"key {key} ") for text in texts]
    return texts


def _outcome(group: _Group) -> str:
    """Say what comes of a schedule."""
    from dispatch_core.hunt.causes import sentence_of
    from dispatch_core.hunt.promises import OUTCOMES

    return (
        f"then {OUTCOMES[group.find.promise].format(entry=group.find.entry)}: {sentence_of(group.find.cause)}"
    )


def _write(
    profile: Profile, group: _Group, number: int, out: Path | None
) -> tuple[Path, Sequence[tuple[str, str]]] | None:
    """Write the files of a find; returns their folder, and their names with what each is."""
    if out is None:
        return None
    from dispatch_core.cli.finding_files import write_files
    from dispatch_core.hunt.replayed import Replay
    from dispatch_core.minimize.same_finding import choose, findings_of
    from dispatch_core.recording.files import find_recordings
    from dispatch_core.recording.reader import read_recording
    from dispatch_core.replay.whole_log import audit_whole

    folder = out / f"{group.find.name}-{number}"
    replay = Replay(profile, group.keys, group.find.steps)
    replay.settle()
    (folder / "log").mkdir(parents=True)
    for name, rows in (("events", replay.events()), ("messages", replay.messages())):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "log" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (source,) = find_recordings([str(folder / "log")])
    (log,) = read_recording(source).logs
    finding = choose(findings_of(audit_whole(log, closed=True)), None, {})
    if finding is None:
        return folder, (("log", "the log; the audit finds nothing in it"),)
    files, problem = write_files(log, finding, folder)
    if problem is not None:
        print(f"dispatch-audit hunt: {problem}", file=sys.stderr)
    return folder, files


def _print(
    profile: Profile,
    hunt: _Hunt,
    groups: Sequence[_Group],
    written: Sequence[tuple[Path, Sequence[tuple[str, str]]] | None],
) -> None:
    rate = hunt.steps / max(hunt.seconds, 1e-9)
    print(
        f"{profile.name}: {hunt.played:,} schedules, {hunt.steps:,} steps in {hunt.seconds:.0f} s "
        f"({rate:,.0f} steps/s), {hunt.keys} sets of keys"
    )
    if not groups:
        print("  no promise was broken")
    for cause, times in sorted(hunt.passed_over.items()):
        print(f"  passed over: {cause}, {times:,} times")
    for group, files in zip(groups, written, strict=True):
        print(f"  {group.find.name} in {len(group.find.steps)} steps, found {group.times:,} times")
        for number, text in enumerate(_sentences(group), 1):
            print(f"    {number}. {text}")
        print(f"    {_outcome(group)}")
        if files is not None:
            print(f"    {files[0]}: {', '.join(name for name, _ in files[1])}")


def _as_json(group: _Group, files: tuple[Path, Sequence[tuple[str, str]]] | None) -> dict[str, Any]:
    return {
        "promise": group.find.name,
        "cause": group.find.cause,
        "found": group.times,
        "keys": [*group.keys],
        "steps": _sentences(group),
        "entry": f"1:{group.find.entry}",
        "outcome": _outcome(group),
        "files": {} if files is None else {name: str(files[0] / name) for name, _ in files[1]},
    }


def _totals(profile: Profile, hunt: _Hunt) -> dict[str, Any]:
    return {
        "rules": profile.name,
        "schedules": hunt.played,
        "steps": hunt.steps,
        "sets_of_keys": hunt.keys,
        "seconds": round(hunt.seconds, 1),
        "found": len(hunt.groups),
        "passed_over": dict(sorted(hunt.passed_over.items())),
    }
