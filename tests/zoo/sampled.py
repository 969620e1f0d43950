"""Compare random schedules with resets on brokers with what the hunt says of them, step by step (docs/hunt.md).

``write FOLDER`` writes seeded schedules as files of the zoo, ``make zoo FOLDER=FOLDER`` plays them, and
``compare FOLDER FILE...`` reads the answers: which entries each client holds after each step, and in the end the promise.
Ends with 0 if all agree.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path
from typing import Any, Final

from dispatch_core.cli.zoo import exhibits_in
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import zoo
from dispatch_core.hunt.failover_steps import FailoverRules
from dispatch_core.hunt.replayed import Replay
from dispatch_core.hunt.search import Hunter
from dispatch_core.hunt.unkeyed import player_of
from dispatch_core.hunt.written_log import TOPIC
from dispatch_core.hunt.zoo import Exhibit
from tests.zoo.__main__ import promise_of

_KEYS: Final = ("key-197", "key-215", "key-132")
_SETTINGS: Final = {"subscriptionKeySharedUseConsistentHashing": False}
_SHORTEST, _LONGEST = 7, 14
_CHANGES_READS: Final = (s_.ACK_FIRST, s_.ACK_LAST, s_.SKIP)
#: Of Key_Shared a skip is left out: 4.2 takes what it has passed off the pending acks, of which no client hears.
_LEFT_OUT: Final = {"Failover": (s_.REPLAY, s_.RETRY), "Key_Shared": (s_.SKIP,)}


def sample(subscription_type: str, release: str, seed: int) -> Exhibit:
    """Choose a schedule at random whose steps are possible, with a reset behind a delivery.

    Reads find here what is there when they complete. On a broker some begin before: those that wait, those of Failover, and
    in 4.0.0 the last entry is known before. So entries are stored first, and of Failover none is acknowledged or skipped
    while a read is in flight.
    """
    rng = random.Random(f"{subscription_type}-{seed}")
    left_out = _LEFT_OUT[subscription_type]
    every = s_.all_steps(groups=("resets",))
    stores = [step for step in every if s_.kind_of(step) == s_.STORE]
    choices = [step for step in every if s_.kind_of(step) not in (s_.STORE, *left_out)]
    while True:
        first = rng.choices(stores, k=rng.randint(1, 4))
        exhibit = _exhibit(subscription_type, seed, first)
        rules = exhibit.profile(release)
        hunter = FailoverRules(rules, TOPIC) if subscription_type == "Failover" else Hunter(rules, _KEYS)
        steps, length = first, rng.randint(_SHORTEST, _LONGEST)
        find = hunter.play(steps, settles=False)
        while len(steps) < length and find is None:
            step, before = rng.choice(choices), hunter.steps
            if isinstance(hunter, FailoverRules) and _changes_a_read(hunter, step, len(first)):
                continue
            find = hunter.play([*steps, step], settles=False)
            if hunter.steps - before == len(steps) + 1:
                steps = [*steps, step]
        resets = [at for at, step in enumerate(steps) if s_.kind_of(step) == s_.RESET]
        if resets and any(pending_after(exhibit, release, steps[:at]) for at in range(resets[-1] + 1)):
            return _exhibit(subscription_type, seed, steps)


def _changes_a_read(hunter: FailoverRules, step: int, stored: int) -> bool:
    """Check whether a step changes what a read in flight returns here, and not on a broker."""
    now = hunter.counters()
    reads = now["reads"] > 0 and now["read_position"] < stored
    return reads and s_.kind_of(step) in _CHANGES_READS


def _exhibit(subscription_type: str, seed: int, steps: list[int]) -> Exhibit:
    return Exhibit(
        name=f"sampled-{subscription_type.lower().replace('_', '-')}-{seed}",
        title="A random schedule",
        links=(),
        kind="hole",
        text="",
        subscription_type=subscription_type,
        settings=_SETTINGS if subscription_type == "Key_Shared" else {},
        allow_out_of_order=False,
        keys=_KEYS,
        steps=tuple(steps),
        verdicts={},
    )


def pending_after(exhibit: Exhibit, release: str, steps: list[int]) -> dict[str, list[int]]:
    """Return which entries each consumer holds after some steps; who holds none is left out."""
    rules = exhibit.profile(release)
    keyed = exhibit.subscription_type == "Key_Shared"
    player = Replay(rules, exhibit.keys, steps) if keyed else player_of(rules, steps)
    return {name: entries for name, entries in player.pending().items() if entries}


def write(folder: Path, subscription_type: str, releases: list[str], seeds: range) -> None:
    """Write schedules as files of the zoo, with the verdict of each release."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        exhibit = sample(subscription_type, releases[-1], seed)
        verdicts: dict[str, tuple[str, ...]] = {}
        for release in releases:
            verdict = zoo.verdict(exhibit, release)
            if verdict != zoo.KEPT:
                verdicts[verdict] = (*verdicts.get(verdict, ()), release)
        text = zoo.text_of_exhibit(_with_verdicts(exhibit, verdicts))
        (folder / f"{exhibit.name}.toml").write_text(text, encoding="utf-8")


def _with_verdicts(exhibit: Exhibit, verdicts: dict[str, tuple[str, ...]]) -> Exhibit:
    fields = {name: getattr(exhibit, name) for name in Exhibit.__slots__}
    return Exhibit(**{**fields, "verdicts": verdicts})


def difference(exhibit: Exhibit, answer: dict[str, Any]) -> str:
    """Say where an answer is not what the hunt says, empty if nowhere."""
    release = answer["release"]
    expected, verdict = promise_of(exhibit.expected[release]), answer["verdict"]
    for at, note in enumerate(answer.get("notes", [])[: len(exhibit.steps)]):
        if verdict != "kept" and at + 1 == len(answer["notes"]):
            break  # the promise is broken in it
        on_broker = {name: entries for name, entries in pending_in(note).items() if entries}
        pending = pending_after(exhibit, release, [*exhibit.steps[: at + 1]])
        if on_broker != pending:
            return (
                f"step {at + 1}, {s_.describe(exhibit.steps[at])}: {on_broker} on the broker, {pending} here"
            )
    return "" if verdict == expected else f"{verdict} on the broker, {expected} here"


def pending_in(note: str) -> dict[str, list[int]]:
    """Read which entries each client holds from a note of ``Play``.

    >>> pending_in('{"do":"read"}: {c1=[0, 2], c2=[]}')
    {'c1': [0, 2], 'c2': []}
    """
    text = note.rpartition(": {")[2]
    return {
        name: sorted(int(entry) for entry in entries.split(", ") if entry)
        for name, entries in re.findall(r"(c\d)=\[([^]]*)\]", text)
    }


def compare(folder: Path, files: list[Path]) -> int:
    """Print where answers differ, and how many agree; returns how many do not."""
    by_name = {exhibit.name: exhibit for exhibit in exhibits_in(folder)}
    answers = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    others = 0
    for answer in answers:
        text = difference(by_name[answer["name"]], answer)
        others += bool(text)
        if text:
            sys.stdout.write(f"{answer['release']:8}{answer['name']:28}{text}\n")
    broken = sum(answer["verdict"] != "kept" for answer in answers)
    sys.stdout.write(
        f"sampled: {len(answers) - others} of {len(answers)} plays agree in every step, {broken} broke a promise\n"
    )
    return others


def main() -> int:
    """Write the schedules, or compare answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.sampled", description=__doc__)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--subscription-type", choices=tuple(_LEFT_OUT), default="Failover")
    parser.add_argument("--releases", nargs="+", default=["4.0.0", "4.2.4"])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="the first one; each schedule has its own")
    options = parser.parse_args()
    if options.what == "compare":
        return int(compare(options.folder, options.files) > 0)
    seeds = range(options.seed, options.seed + options.count)
    write(options.folder, options.subscription_type, options.releases, seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
