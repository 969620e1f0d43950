"""Campaign of kills: ``python -m tests.chaos [--seed N] [--trials N | --minutes M] [--out FILE]``; ``--tell FILE`` sums up.

It makes a scene and counts every stage's points, in the driver and in Spark's workers. Then it draws points: each part
(ingest, replay, audit, publish) gets as many, and each kind of point comes once before any comes twice. It prints one line
of JSON for each trial and a table at the end. The exit code is 1 if any trial failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.chaos.scene import Scene, copy, start
from tests.chaos.stages import STAGES
from tests.chaos.trial import Kill, Outcome, attempt

PARTS: Final = ("ingest", "replay", "audit", "publish")
_SPARK: Final = ("ingest", "replay", "aggregates")
#: Share of the kills at any time instead of at a counted point.
_TIMED_SHARE: Final = 0.3


def census(
    scene: Scene, folder: Path
) -> tuple[dict[tuple[str, str], list[dict[str, Any]]], dict[str, float]]:
    """Count points: (stage, driver or worker) → its points in order; stage → its seconds."""
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    seconds = {}
    for stage in STAGES:
        for victim in ("driver", "worker") if stage in _SPARK else ("driver",):
            home = copy(scene.before(stage), folder / f"{stage}-{victim}")
            listing = folder / f"{stage}-{victim}.json"
            environment = {"CHAOS_ROLE": victim, "CHAOS_BELOW": str(home), "CHAOS_CENSUS": str(listing)}
            began = time.monotonic()
            process = start(stage, home, scene.source, environment)
            said = process.communicate(timeout=300)[1]
            if process.returncode:
                raise RuntimeError(f"{stage} failed while its points were counted: {said.decode()[-2000:]}")
            seconds[stage] = time.monotonic() - began
            lines = listing.read_text().splitlines() if listing.exists() else []
            points[stage, victim] = [json.loads(line) for line in lines]
            print(
                f"chaos: {stage}: {len(lines)} points of the {victim}, {seconds[stage]:.1f} s",
                file=sys.stderr,
            )
    return points, seconds


def drawn(
    points: dict[tuple[str, str], list[dict[str, Any]]], seconds: dict[str, float], random_: random.Random
) -> Iterator[Kill]:
    """Draw kills without end: the parts in turn, new kinds of points first."""
    kinds: dict[str, dict[tuple[str, ...], list[Kill]]] = defaultdict(lambda: defaultdict(list))
    for (stage, victim), listed in points.items():
        for point in listed:
            kill = Kill(stage, victim, at=point["number"])
            part = Outcome(kill, hit=point).part
            kinds[part][stage, victim, point["event"], point["where"]].append(kill)
    used: Counter[tuple[str, ...]] = Counter()
    while True:
        for part in PARTS:
            if random_.random() < _TIMED_SHARE and part != "publish":
                yield _timed(part, seconds, random_)
                continue
            least = min(used[part, *kind] for kind in kinds[part])
            kind = random_.choice(sorted(kind for kind in kinds[part] if used[part, *kind] == least))
            used[part, *kind] += 1
            yield random_.choice(kinds[part][kind])


def _timed(part: str, seconds: dict[str, float], random_: random.Random) -> Kill:
    stage = random_.choice([stage for stage in STAGES if Outcome(Kill(stage, "driver")).part == part])
    victim = random_.choice(("driver", "jvm", "worker")) if stage in _SPARK else "driver"
    return Kill(stage, victim, after_s=round(random_.uniform(0.3, 0.95) * seconds[stage], 2))


def main() -> int:
    """Run a campaign; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so long")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each trial")
    parser.add_argument("--tell", type=Path, metavar="FILE", help="only sum up the trials of a file")
    options = parser.parse_args()
    if options.tell:
        print(table([Outcome.of_json(line) for line in options.tell.read_text().splitlines()]))
        return 0
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        root = Path(name)
        print("chaos: making the scene", file=sys.stderr)
        scene = Scene.make(root / "scene")
        (root / "census").mkdir()
        points, seconds = census(scene, root / "census")
        for number, kill in enumerate(drawn(points, seconds, random.Random(options.seed)), start=1):
            if number > options.trials or time.monotonic() - began > options.minutes * 60:
                break
            outcome = attempt(scene, kill, root / "trial")
            outcomes.append(outcome)
            line = outcome.to_json()
            print(line, flush=True)
            if options.out:
                with options.out.open("a") as stream:
                    stream.write(line + "\n")
    print(table(outcomes), file=sys.stderr)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def table(outcomes: list[Outcome]) -> str:
    """Return a line for each part: trials, hits, distinct points and kinds of points, failures, killed processes."""
    lines = [f"{'part':10}{'trials':>8}{'hit':>6}{'points':>8}{'kinds':>7}{'failed':>8}  killed"]
    for part in PARTS:
        of_part = [outcome for outcome in outcomes if outcome.part == part]
        hits = [(outcome.kill, outcome.hit) for outcome in of_part if outcome.hit]
        points = {(kill.stage, kill.victim, hit["event"], hit.get("number")) for kill, hit in hits}
        kinds = {
            (kill.stage, kill.victim, hit["event"], hit["where"]) for kill, hit in hits if "where" in hit
        }
        failed = sum(bool(outcome.failures) for outcome in of_part)
        killed = Counter(f"{kill.stage} {kill.victim}" for kill, _hit in hits)
        who = ", ".join(f"{count} {name}" for name, count in sorted(killed.items()))
        lines.append(f"{part:10}{len(of_part):8}{len(hits):6}{len(points):8}{len(kinds):7}{failed:8}  {who}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
