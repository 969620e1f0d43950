"""Hunt releases on Spark and compare them: chunks of schedules in tasks, their results in files, one comparison of all.

A task plays chunks (``dispatch_core.hunt.campaign``) and writes each one's result into a file of its own under its final
name. A chunk whose file is there, written by the same code for the same campaign, is not played again: so a run that was
killed goes on, and a task that runs twice writes the same file twice. The comparison is made on the driver, of all files in
the order of the campaign: it does not depend on the number of tasks.

Run as ``python -m spark_jobs.hunt --release 4.0.0 --release 4.2.4 --out DIR``: writes ``chunks/``, ``finds/`` (a file of the
zoo for each find), ``hunt.json`` (for programs) and ``index.html`` (for people) into the folder ``--out``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.hunt import zoo
from dispatch_core.hunt.campaign import Campaign, Chunk, Found, campaign, compare, merged, new_finds, results
from dispatch_core.hunt.choices import ALSO, KEY_SHARED, PROMISES, SUBSCRIPTION_TYPES
from dispatch_core.hunt.hunts import Hunt
from spark_jobs.hunt.campaign_page import campaign_page
from spark_jobs.hunt.watch_release import watch
from spark_jobs.location import Location
from spark_jobs.one_process import one_process
from spark_jobs.progress import complain, say, tasks_done
from spark_jobs.replay.snapshot_files import core_digest
from spark_jobs.session import is_chosen, running_session
from spark_jobs.stage_command import EXIT_TRY_AGAIN, add_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_TASKS: Final = 1_000
#: Schedules of all releases up to which starting Spark takes longer than playing them: Key_Shared, and other types.
_SMALL: Final = 2_000_000
_SMALL_UNKEYED: Final = 500_000


class LostChunksError(DispatchAuditError):
    """Results of chunks that were written are not there."""

    another_attempt_may_do = True


@names_disk_errors("hunt")
def hunt_releases(spark: SparkSession, asked: Campaign, out: Location, tasks: int) -> dict[str, Any]:
    """Play what is not played yet, in at most ``tasks`` tasks; write the comparison into ``out``, and return a summary."""
    began = datetime.now(UTC)
    chunks = asked.chunks()
    work: list[Chunk | str] = [chunk for chunk in chunks if kept_hunt(out, asked, chunk) is None]
    if asked.watched:
        work += [release for release in asked.releases if kept_functions(out, asked, release) is None]
    say(f"hunt: {len(chunks)} chunks of {len(asked.releases)} releases; {len(work)} parts are to be played")
    if work:
        shares = [work[at::tasks] for at in range(min(tasks, len(work)))]
        with tasks_done(spark, "hunt: tasks done", len(shares)):
            spark.sparkContext.parallelize(
                [(asked, str(out), share) for share in shares], len(shares)
            ).flatMap(_play).collect()
    result = write_comparison(asked, out)
    finds = [cell for row in result["finds"] for cell in row["releases"].values() if cell["found"]]
    new = new_finds(result)
    for text in new:
        say(f"hunt: new: {text}")
    return {
        "stage": "hunt",
        "releases": len(asked.releases),
        "schedules": sum(release["schedules"] for release in result["releases"]),
        "played_now": len(work),
        "finds": len(finds),
        "known": len(finds) - len(new),
        "new": new,
        "index": str(out / "index.html"),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 3),
    }


# --- the tasks ---------------------------------------------------------------------------------------------------------


def _play(task: tuple[Campaign, str, Sequence[Chunk | str]]) -> Iterator[str]:
    """Play chunks, and watch releases; write each result when it is there, and yield its name."""
    asked, url, work = task
    out = Location.of(url)
    for part in work:
        if isinstance(part, Chunk):
            place, content = _place(out, part.name), asked.play(part).as_json()
        else:
            place, content = _place(out, f"{part}-watched"), {"functions": watch(asked, part)}
        place.write_text(json.dumps({"of": _identity(asked, part), **content}))
        yield place.name


def _place(out: Location, name: str) -> Location:
    return out / "chunks" / f"{name}.json"


def _identity(asked: Campaign, part: Chunk | str) -> str:
    """Identify what a part of the campaign is a result of: the code, the rules, and what was asked for."""
    if isinstance(part, Chunk):
        return f"{core_digest()} {asked.digest(part)}"
    seeds, each = asked.watched_seeds()
    first = Chunk(part, asked.first_seed, each)
    return f"{core_digest()} {asked.digest(first)} watched {len(seeds)}"


def _kept(out: Location, asked: Campaign, part: Chunk | str, name: str) -> dict[str, Any] | None:
    """Return the result of a part, if it was written for the same campaign by the same code."""
    try:
        content: dict[str, Any] = json.loads(_place(out, name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return content if content.get("of") == _identity(asked, part) else None


def kept_hunt(out: Location, asked: Campaign, chunk: Chunk) -> Hunt | None:
    """Return the hunt of a chunk that was played before; ``None`` if it has to be played."""
    content = _kept(out, asked, chunk, chunk.name)
    return None if content is None else Hunt.of_json(content, asked.aim)


def kept_functions(out: Location, asked: Campaign, release: str) -> list[dict[str, Any]] | None:
    """Return the functions that a release was watched to go through; ``None`` if it has to be watched."""
    content = _kept(out, asked, release, f"{release}-watched")
    return None if content is None else list(content["functions"])


# --- the comparison ----------------------------------------------------------------------------------------------------


def write_comparison(asked: Campaign, out: Location) -> dict[str, Any]:
    """Compare what all tasks have written, and write it in place of an earlier comparison; return ``hunt.json``."""
    played: dict[Chunk, Hunt] = {}
    for chunk in asked.chunks():
        hunt = kept_hunt(out, asked, chunk)
        if hunt is None:
            raise LostChunksError(f"{_place(out, chunk.name)} is not there any more; run the task again")
        played[chunk] = hunt
    watched = {release: kept_functions(out, asked, release) for release in asked.releases}
    by_release = merged(asked, played)
    rows = compare(asked, by_release)
    seen = {release: functions for release, functions in watched.items() if functions is not None}
    result = results(asked, by_release, rows, seen)
    _write_finds(out / "finds", rows)
    (out / "hunt.json").write_text(json.dumps(result, ensure_ascii=False, indent=1))
    (out / "index.html").write_text(campaign_page(result))
    return result


def _write_finds(folder: Location, rows: Mapping[str, Sequence[Found]]) -> None:
    found = [cell.exhibit for cells in rows.values() for cell in cells]
    for exhibit in found:
        (folder / f"{exhibit.name}.toml").write_text(zoo.text_of_exhibit(exhibit))
    names = {f"{exhibit.name}.toml" for exhibit in found}
    for stored in folder.children():
        if stored.location.name not in names:
            stored.location.delete()


# --- the command -------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.hunt",
        description="hunt releases for client schedules that break a promise, and compare them",
    )
    parser.add_argument("--out", required=True, type=Location.of, help="folder or URL of the results")
    parser.add_argument(
        "--release",
        action="append",
        required=True,
        dest="releases",
        metavar="VERSION",
        help="may be given again",
    )
    parser.add_argument("--subscription-type", choices=SUBSCRIPTION_TYPES, default=KEY_SHARED)
    parser.add_argument("--allow-out-of-order", action="store_true")
    for name, choices in (("--promise", tuple(PROMISES)), ("--also", ALSO)):
        parser.add_argument(
            name, action="append", default=[], choices=choices, help="may be given again; see docs/hunt.md"
        )
    parser.add_argument(
        "--pass-over", action="append", default=[], metavar="CAUSE", help="may be given again"
    )
    add_settings(parser)
    parser.add_argument("--states", action="store_true", help="count the states of the dispatcher")
    parser.add_argument("--schedules", type=int, default=2_000_000, metavar="N", help="of each release")
    parser.add_argument("--first-seed", type=int, default=0, metavar="S")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="that share the schedules")
    parser.add_argument(
        "--watched", type=int, default=2_000, metavar="N", help="schedules of each release for its coverage"
    )
    parser.add_argument("--tasks", type=int, default=4, metavar="N", help="of Spark, at most")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt releases; see ``--help``. Exit codes as of all stages (``stage_command``); finds are no failure."""
    options = _parser().parse_args(arguments)
    try:
        asked = campaign(
            options.releases,
            subscription_type=options.subscription_type,
            allow_out_of_order=options.allow_out_of_order,
            assignments=options.settings,
            promises=options.promise,
            also=options.also,
            pass_over=options.pass_over,
            states=options.states,
            schedules=options.schedules,
            first_seed=options.first_seed,
            seeds=options.seeds,
            watched=options.watched,
        )
        options.out.check()
        tasks = max(1, min(options.tasks, MOST_TASKS))
        small = _SMALL if asked.subscription_type == KEY_SHARED else _SMALL_UNKEYED
        if not is_chosen() and asked.schedules * len(asked.releases) <= small:
            summary = hunt_releases(one_process(), asked, options.out, tasks)
        else:
            with running_session(0) as spark:
                summary = hunt_releases(spark, asked, options.out, tasks)
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return EXIT_TRY_AGAIN if getattr(error, "another_attempt_may_do", False) else 2
    print(json.dumps(summary, sort_keys=True), flush=True)
    return 0
