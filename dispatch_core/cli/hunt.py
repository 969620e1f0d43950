"""``dispatch-audit hunt``: search client schedules for the shortest ones that break a promise of a release."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.broker import settings
from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.cli import CLEAN
from dispatch_core.cli.recordings import DAY_S, check_unoccupied, progress, seconds
from dispatch_core.errors import DispatchAuditError
from dispatch_core.hunt.choices import ALSO, KEY_SHARED, PROMISES, SUBSCRIPTION_TYPES

if TYPE_CHECKING:
    from dispatch_core.hunt.hunts import Aim, Group, Hunt

_FOUND: Final = 1
#: The file of a find's schedule.
SCHEDULE: Final = "schedule.toml"
_BUDGET_S: Final = 60.0
#: Chunks of schedules that are played with the same three keys.
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
        choices=SUBSCRIPTION_TYPES,
        default=KEY_SHARED,
        help="of the subscription (default: Key_Shared); the others take longer",
    )
    parser.add_argument(
        "--allow-out-of-order", action="store_true", help="consumers ask for allowOutOfOrderDelivery"
    )
    parser.add_argument(
        "--sticky",
        action="store_true",
        help="consumers bring ranges: c1 the lower half of the hash space, c2 the upper half, c3 everything",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        choices=ALSO,
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
        choices=sorted(PROMISES),
        help="search schedules that break this promise only; may be given again (default: all)",
    )
    parser.add_argument(
        "--budget",
        type=seconds(DAY_S),
        metavar="SECONDS",
        help="stop after so long (default: 60, with --schedules no limit)",
    )
    parser.add_argument(
        "--schedules", type=_count, metavar="N", help="stop after so many schedules, however long that takes"
    )
    parser.add_argument(
        "--depth",
        type=_count,
        metavar="N",
        help="first play every schedule of up to N steps, once for each state that one leads to, with one set of keys; "
        "then stop, unless there is a --budget or --schedules",
    )
    parser.add_argument(
        "--states", action="store_true", help="count the states of the dispatcher that schedules lead to"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on with the hunt whose state is in this file, and keep it there: after every set of keys",
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


def run(options: argparse.Namespace) -> int:
    """Hunt; returns 0 nothing was found, 1 a promise can be broken."""
    profile = resolve(
        options.broker_version,
        settings.given(options.settings),
        subscription_type=options.subscription_type,
        partition_index=0,
        key_shared_mode="STICKY" if options.sticky else "AUTO_SPLIT",
        allow_out_of_order=options.allow_out_of_order,
    )
    for warning in profile.warnings:
        print(warning, file=sys.stderr)
    _check_causes(options.pass_over)
    _check_steps(options)
    if options.play:
        return _play(options)
    if options.out is not None:
        check_unoccupied(options.out)
    hunt = _search(profile, options)
    groups = hunt.sorted_groups()
    written = [_write(profile, group, number, options) for number, group in enumerate(groups, 1)]
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
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DispatchAuditError(
                f"--play {path}: cannot be read: {error}; nothing more was played"
            ) from error
        exhibit = zoo.parse(path.stem, text)
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


def _check_steps(options: argparse.Namespace) -> None:
    """Raise ``DispatchAuditError`` for what a type of subscription does not have."""
    from dispatch_core.hunt.schedule import GROUPS_OF

    known = GROUPS_OF[options.subscription_type]
    for group in options.also:
        if group not in known:
            raise DispatchAuditError(
                f"--also {group}: {options.subscription_type} has {', '.join(known)} only"
            )
    if options.subscription_type != KEY_SHARED and (options.states or options.sticky):
        raise DispatchAuditError("--states and --sticky are for Key_Shared subscriptions only")


def _check_causes(names: Sequence[str]) -> None:
    """Raise ``DispatchAuditError`` for a name that is no cause."""
    from dispatch_core.hunt.causes import NAMES

    for name in names:
        if name not in NAMES:
            raise DispatchAuditError(f"--pass-over {name}: not one of {', '.join(sorted(NAMES))}")


def _search(profile: Profile, options: argparse.Namespace) -> Hunt:
    """Play schedules until the budget is used up, or so many are played; a hunt that resumes stops at a set of keys."""
    from dispatch_core.hunt.hunts import Aim, Every, hunter_for, play_every

    aim = Aim(
        tuple(options.promise or PROMISES), tuple(options.also), tuple(options.pass_over), options.states
    )
    budget_s = options.budget or (DAY_S if options.schedules else _BUDGET_S)
    hunt = _begin(profile, options, aim)
    began, earlier_s = time.monotonic(), hunt.seconds

    def goes_on(every: Every) -> bool:
        progress(f"{every.schedules:,} schedules of up to {every.steps + 1} steps, {len(hunt.groups)} found")
        return options.budget is None or time.monotonic() - began < options.budget

    if options.depth is not None and hunt.every is None:
        play_every(hunt, hunter_for(profile, aim, options.seed, None), aim, options.depth, goes_on)
        hunt.seconds = earlier_s + time.monotonic() - began
        if options.resume is not None:
            _save(hunt, options.resume, _digest(profile, options, aim))
    if options.depth is not None and options.budget is None and options.schedules is None:
        progress("")
        return hunt
    while True:
        hunter = hunter_for(profile, aim, options.seed + hunt.keys, hunt.sketch)
        hunt.keys += 1
        for _ in range(_CHUNKS_PER_KEYS):
            find = hunter.random()
            if find is not None:
                hunt.note(hunter, find, aim)
            hunt.seconds = earlier_s + time.monotonic() - began
            played = hunt.played + hunter.played
            progress(f"{played:,} schedules, {len(hunt.groups)} found")
            is_over = hunt.seconds - earlier_s >= budget_s or played >= (options.schedules or played + 1)
            if is_over and options.resume is None:
                break
        hunt.count(hunter)
        if options.resume is not None:
            _save(hunt, options.resume, _digest(profile, options, aim))
        if is_over:
            progress("")
            return hunt


# --- a hunt that goes on later -----------------------------------------------------------------------------------------


def _digest(profile: Profile, options: argparse.Namespace, aim: Aim) -> str:
    """Identify what is hunted: a hunt goes on only with the same rules, steps and seed."""
    return aim.digest(profile, options.seed) + (" sticky" if options.sticky else "")


def _begin(profile: Profile, options: argparse.Namespace, aim: Aim) -> Hunt:
    """Return the hunt that is in the file to resume, or a new one."""
    from dispatch_core.hunt.hunts import Hunt

    if options.resume is None or not options.resume.exists():
        return Hunt.of(aim)
    try:
        saved = json.loads(options.resume.read_text(encoding="utf-8"))
        if saved["hunts"] != _digest(profile, options, aim):
            raise DispatchAuditError(f"{options.resume} is of a hunt with other arguments: give another file")
        return Hunt.of_json(saved, aim)
    except (ValueError, KeyError, TypeError) as error:
        raise DispatchAuditError(
            f"{options.resume} is no hunt to resume ({error}): give another file"
        ) from error


def _save(hunt: Hunt, path: Path, digest: str) -> None:
    """Keep a hunt, in one step."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps({"hunts": digest, **hunt.as_json()}), encoding="utf-8")
    new.replace(path)


# --- finds -------------------------------------------------------------------------------------------------------------


def _write(
    profile: Profile, group: Group, number: int, options: argparse.Namespace
) -> tuple[Path, Sequence[tuple[str, str]]] | None:
    """Write the files of a find; returns their folder, and their names with what each is."""
    if options.out is None:
        return None
    from dispatch_core.audit.catalogue import INPUT_QUALITY, KINDS
    from dispatch_core.cli.finding_files import write_files
    from dispatch_core.hunt.unkeyed import played
    from dispatch_core.minimize.same_finding import choose, findings_of
    from dispatch_core.recording.files import find_recordings
    from dispatch_core.recording.reader import read_recording
    from dispatch_core.replay.whole_log import audit_whole

    folder = options.out / f"{group.find.name}-{number}"
    replay = played(profile, group.keys, group.find.steps)
    (folder / "log").mkdir(parents=True)
    for name, rows in (("events", replay.events()), ("messages", replay.messages())):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "log" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / SCHEDULE).write_text(_exhibit(profile, group, options), encoding="utf-8")
    own = (SCHEDULE, "the schedule, for hunt --play and make zoo")
    (source,) = find_recordings([str(folder / "log")])
    (log,) = read_recording(source).logs
    findings = findings_of(audit_whole(log, closed=True))
    findings = [finding for finding in findings if KINDS[finding.kind].promise != INPUT_QUALITY]
    finding = choose(findings, None, {})
    if finding is None:
        return folder, (("log", "the log; the audit finds nothing in it"), own)
    files, problem = write_files(log, finding, folder)
    if problem is not None:
        print(f"dispatch-audit hunt: {problem}", file=sys.stderr)
    return folder, (*files, own)


def _exhibit(profile: Profile, group: Group, options: argparse.Namespace) -> str:
    """Return a find as a file of the zoo, with the verdicts that all releases get."""
    from dispatch_core.hunt import zoo

    exhibit = zoo.Exhibit(
        name=group.find.name,
        title=f"{group.find.name}.{group.find.cause}",
        links=(),
        kind="hole",
        text=group.outcome,
        subscription_type=options.subscription_type,
        settings={
            name: profile.settings[name]
            for name in settings.given(options.settings)
            if name in profile.settings
        },
        allow_out_of_order=profile.allow_out_of_order,
        key_shared_mode=profile.key_shared_mode,
        keys=tuple(group.keys),
        steps=group.find.steps,
        verdicts={},
    )
    verdicts = {
        verdict: tuple(ranges) for verdict, ranges in zoo.verdicts(exhibit).items() if verdict != zoo.KEPT
    }
    return zoo.text_of_exhibit(replace(exhibit, verdicts=verdicts))


def _print(
    profile: Profile,
    hunt: Hunt,
    groups: Sequence[Group],
    written: Sequence[tuple[Path, Sequence[tuple[str, str]]] | None],
) -> None:
    rate = hunt.steps / max(hunt.seconds, 1e-9)
    at_random = "" if hunt.every is not None and not hunt.played else f"{hunt.played:,} schedules, "
    print(
        f"{profile.name}: {at_random}{hunt.steps:,} steps in {hunt.seconds:.0f} s ({rate:,.0f} steps/s)"
        + (f", {hunt.keys} sets of keys" if at_random else "")
        + ("" if hunt.states is None else f", about {hunt.states:,} states")
    )
    if hunt.every is not None:
        every = hunt.every
        print(
            f"  every schedule of up to {every.steps} steps: {every.schedules:,}, which lead to {every.states:,} states"
        )
    if not groups:
        print("  no promise was broken")
    for cause, times in sorted(hunt.passed_over.items()):
        print(f"  passed over: {cause}, {times:,} times")
    for end, times in sorted(hunt.not_shrunk.items()):
        print(f"  found, but not shrunk: {end}, {times:,} times")
    for group, files in zip(groups, written, strict=True):
        print(f"  {group.find.name} in {len(group.find.steps)} steps, found {group.times:,} times")
        for number, text in enumerate(group.sentences, 1):
            print(f"    {number}. {text}")
        print(f"    {group.outcome}")
        if files is not None:
            print(f"    {files[0]}: {', '.join(name for name, _ in files[1])}")


def _as_json(group: Group, files: tuple[Path, Sequence[tuple[str, str]]] | None) -> dict[str, Any]:
    return {
        "promise": group.find.name,
        "cause": group.find.cause,
        "found": group.times,
        "keys": [*group.keys],
        "steps": group.sentences,
        "entry": f"1:{group.find.entry}",
        "outcome": group.outcome,
        "files": {} if files is None else {name: str(files[0] / name) for name, _ in files[1]},
    }


def _totals(profile: Profile, hunt: Hunt) -> dict[str, Any]:
    return {
        "rules": profile.name,
        "schedules": hunt.played,
        "steps": hunt.steps,
        "sets_of_keys": hunt.keys,
        "seconds": round(hunt.seconds, 1),
        "states": hunt.states,
        "every": None if hunt.every is None else asdict(hunt.every),
        "found": len(hunt.groups),
        "passed_over": dict(sorted(hunt.passed_over.items())),
        "not_shrunk": dict(sorted(hunt.not_shrunk.items())),
    }
