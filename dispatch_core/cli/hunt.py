"""``dispatch-audit hunt``: search client schedules for the shortest ones that break a promise of a release."""

from __future__ import annotations

import argparse
import base64
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
    import numpy as np
    import numpy.typing as npt

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
        metavar="SECONDS",
        help="stop after so long (default: 60, with --schedules no limit)",
    )
    parser.add_argument(
        "--schedules", type=_count, metavar="N", help="stop after so many schedules, however long that takes"
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
    sketch: npt.NDArray[np.uint8] | None = None

    @property
    def states(self) -> int | None:
        """The states that the schedules have led to, about; ``None`` = they were not counted."""
        from dispatch_core.hunt.distinct import estimate

        return None if self.sketch is None else estimate(self.sketch)


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
    if options.subscription_type != "Key_Shared" and (options.also or options.out or options.states):
        raise DispatchAuditError("--also, --out and --states are for Key_Shared subscriptions only")
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


def _check_causes(names: Sequence[str]) -> None:
    """Raise ``DispatchAuditError`` for a name that is no cause."""
    from dispatch_core.hunt.causes import NAMES

    for name in names:
        if name not in NAMES:
            raise DispatchAuditError(f"--pass-over {name}: not one of {', '.join(sorted(NAMES))}")


def _search(profile: Profile, options: argparse.Namespace) -> _Hunt:
    """Play schedules until the budget is used up, or so many are played; a hunt that resumes stops at a set of keys."""
    wanted = {name for promise in options.promise or _PROMISES for name in _PROMISES[promise]}
    budget_s = options.budget or (DAY_S if options.schedules else _BUDGET_S)
    hunt = _begin(profile, options, wanted)
    began, earlier_s = time.monotonic(), hunt.seconds
    for hunter in _hunters(profile, options, wanted, hunt):
        hunt.keys += 1
        for _ in range(_CHUNKS_PER_KEYS):
            find = hunter.random()
            if find is not None:
                _note(hunt, hunter, find, options.pass_over)
            hunt.seconds = earlier_s + time.monotonic() - began
            played = hunt.played + hunter.played
            progress(f"{played:,} schedules, {len(hunt.groups)} found")
            is_over = hunt.seconds - earlier_s >= budget_s or played >= (options.schedules or played + 1)
            if is_over and options.resume is None:
                break
        hunt.played += hunter.played
        hunt.steps += hunter.steps
        hunt.passed_over += hunter.passed_over
        if options.resume is not None:
            _save(hunt, options.resume, _digest(profile, options, wanted))
        if is_over:
            progress("")
            return hunt
    raise AssertionError("there is always another seed")


# --- a hunt that goes on later -----------------------------------------------------------------------------------------


def _digest(profile: Profile, options: argparse.Namespace, wanted: set[str]) -> str:
    """Identify what is hunted: a hunt goes on only with the same rules, steps and seed."""
    asked = [sorted(wanted), sorted(options.also), sorted(options.pass_over), options.seed, options.states]
    return f"{profile.digest} {json.dumps(asked)}"


def _begin(profile: Profile, options: argparse.Namespace, wanted: set[str]) -> _Hunt:
    """Return the hunt that is in the file to resume, or a new one."""
    from dispatch_core.hunt.distinct import new_sketch
    from dispatch_core.hunt.schedule import parse
    from dispatch_core.hunt.search import Find

    hunt = _Hunt(sketch=new_sketch() if options.states else None)
    if options.resume is None or not options.resume.exists():
        return hunt
    try:
        saved = json.loads(options.resume.read_text(encoding="utf-8"))
        if saved["hunts"] != _digest(profile, options, wanted):
            raise DispatchAuditError(f"{options.resume} is of a hunt with other arguments: give another file")
        hunt.played, hunt.steps, hunt.keys = saved["schedules"], saved["steps"], saved["sets_of_keys"]
        hunt.seconds, hunt.passed_over = saved["seconds"], Counter(saved["passed_over"])
        if hunt.sketch is not None:
            hunt.sketch[:] = list(base64.b64decode(saved["sketch"]))
        for row in saved["finds"]:
            steps = tuple(parse(text) for text in row["steps"])
            find = Find(row["promise"], steps, row["entry"], row["slot"], row["cause"])
            hunt.groups[find.group] = _Group(find, tuple(row["keys"]), row["found"])
    except (ValueError, KeyError, TypeError) as error:
        raise DispatchAuditError(
            f"{options.resume} is no hunt to resume ({error}): give another file"
        ) from error
    return hunt


def _save(hunt: _Hunt, path: Path, digest: str) -> None:
    """Keep a hunt, in one step."""
    from dispatch_core.hunt.schedule import describe

    sketch = b"" if hunt.sketch is None else hunt.sketch.tobytes()
    finds = [
        {
            "promise": group.find.promise,
            "cause": group.find.cause,
            "steps": [describe(step) for step in group.find.steps],
            "entry": group.find.entry,
            "slot": group.find.slot,
            "keys": group.keys,
            "found": group.times,
        }
        for group in hunt.groups.values()
    ]
    saved = {
        "hunts": digest,
        "schedules": hunt.played,
        "steps": hunt.steps,
        "sets_of_keys": hunt.keys,
        "seconds": hunt.seconds,
        "passed_over": hunt.passed_over,
        "finds": finds,
        "sketch": base64.b64encode(sketch).decode(),
    }
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(saved), encoding="utf-8")
    new.replace(path)


# --- hunters and finds -------------------------------------------------------------------------------------------------


def _hunters(
    profile: Profile, options: argparse.Namespace, wanted: set[str], hunt: _Hunt
) -> Iterator[Hunter | PlainHunter]:
    """Yield hunters for three keys each, without end; the same seed yields the same ones.

    Those that ``hunt`` has had already are left out.
    """
    from dispatch_core.hunt.plain import PlainHunter
    from dispatch_core.hunt.search import Hunter

    seed = options.seed + hunt.keys
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
            sketch=hunt.sketch,
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
        + ("" if hunt.states is None else f", about {hunt.states:,} states")
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
        "states": hunt.states,
        "found": len(hunt.groups),
        "passed_over": dict(sorted(hunt.passed_over.items())),
    }
