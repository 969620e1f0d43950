"""The cases of the benchmark: the inputs of each, its measurement and its bars."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.generated import Log, first_day
from bench.harness import (
    DATA,
    Bar,
    BenchError,
    Measured,
    in_turns,
    measure,
    median_seconds,
    per_message,
    ratio,
    say,
)
from bench.scale import Done

_SCRATCH: Final = DATA / "scratch"
_ROLLING: Final = "--churn=rolling-restart"
#: A small log, replayed before the clock starts, so that the costs of the first replay of a process do not count.
TINY: Final = Log(1000, ("--keys=100", "--consumers=4", _ROLLING))

#: The arguments of ``generate`` that put each rule in force.
RULES: Final = {
    "draining-hashes": (),
    "read-position": ("--broker-version=3.0.17",),
    "last-sent": ("--broker-version=4.0.0-preview.1",),
    "auto-split": ("--set=subscriptionKeySharedUseConsistentHashing=false",),
    "sticky": ("--key-shared-mode=STICKY",),
    "failover": ("--subscription-type=Failover",),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes and repetitions of the measurements."""

    messages: int
    growth: tuple[int, int]
    times: int
    pipeline_messages: int
    small_dispatchers: int
    consumers: int
    json_messages: int
    trace_messages: int
    scale_messages: int
    #: A folder in an object store (``s3://bucket/prefix``) for homes; empty = there is none.
    store: str = ""


FULL: Final = Sizes(
    messages=10_000_000,
    growth=(1_000_000, 50_000_000),
    times=5,
    pipeline_messages=50_000_000,
    small_dispatchers=5000,
    consumers=1000,
    json_messages=1_000_000,
    trace_messages=100_000,
    scale_messages=1_000_000_000,
)
QUICK: Final = Sizes(
    messages=300_000,
    growth=(300_000, 900_000),
    times=1,
    pipeline_messages=300_000,
    small_dispatchers=150,
    consumers=200,
    json_messages=100_000,
    trace_messages=10_000,
    scale_messages=1_000_000,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement: its inputs, and the function that makes bars of them.

    ``quick``: part of the quick run. ``asked``: measured only if it is named.
    """

    name: str
    logs: Callable[[Sizes], Sequence[Log]]
    run: Callable[[Sizes], Iterator[Bar]]
    quick: bool = True
    asked: bool = False


def replay_log(sizes: Sizes, rule: str = "draining-hashes") -> Log:
    """Return the log of the replay under a rule, with a rolling restart."""
    return Log(sizes.messages, (_ROLLING, *RULES[rule]))


def _of_rule(rule: str) -> Case:
    def run(sizes: Sizes) -> Iterator[Bar]:
        return against_copy(replay_log(sizes, rule), sizes.times, rule)

    return Case(rule, lambda sizes: [TINY, replay_log(sizes, rule)], run)


def against_copy(log: Log, times: int, name: str) -> Iterator[Bar]:
    """Measure the replay of ``log`` on one core against the copy of its bytes, and its peak memory."""
    with _scratch(name) as scratch:
        found = in_turns(
            [
                ("replay", "bench.replay:product", _replay_of(log, scratch)),
                ("copy", "bench.copying:beside", _copy_of(log, scratch)),
            ],
            times,
            cores=1,
        )
    rate = log.messages / median_seconds(found["replay"])
    detail = (
        f"{median_seconds(found['replay']):.2f} s against {median_seconds(found['copy']):.2f} s; "
        f"{rate:,.0f} messages/s"
    )
    yield ratio(f"replay, {name}, against copying", found["replay"], found["copy"], 1.5, detail)
    yield _memory(f"peak memory, {name}", found["replay"], f"{log.messages:,} messages")


def _memory(name: str, measured: Sequence[Measured], detail: str) -> Bar:
    return Bar(name, max(run.peak_mb for run in measured), 600, "MB", detail)


def _growth_logs(sizes: Sizes) -> list[Log]:
    return [TINY, *(Log(messages, (_ROLLING,)) for messages in sizes.growth)]


def _growth(sizes: Sizes) -> Iterator[Bar]:
    """Compare time per message and memory of a short log and a long one."""
    _, short, long = _growth_logs(sizes)
    with _scratch("growth") as scratch:
        found = _both(short, long, scratch, sizes.times)
    yield _compared("time per message, {} to {} messages", found, short.messages, long.messages, 1.15)
    yield _memory("peak memory, longest log", found["after"], f"{long.messages:,} messages")
    peaks = {name: median(run.peak_mb for run in side) for name, side in found.items()}
    highest = ", then ".join(f"{max(run.peak_mb for run in side):.0f} MB" for side in found.values())
    yield Bar(
        f"peak memory, {short.messages:,} to {long.messages:,} messages",
        peaks["after"] / peaks["before"],
        1.1,
        "x",
        f"medians {peaks['before']:.0f} MB, then {peaks['after']:.0f} MB; highest {highest}",
    )


def _keys_logs(sizes: Sizes) -> list[Log]:
    return [TINY, *(Log(sizes.messages, (_ROLLING, f"--keys={keys}")) for keys in (10, 1_000_000))]


def _keys(sizes: Sizes) -> Iterator[Bar]:
    _, few, many = _keys_logs(sizes)
    with _scratch("keys") as scratch:
        found = _both(few, many, scratch, sizes.times)
    yield _compared("time per message, 10 to 1,000,000 keys", found, few.messages, many.messages, 2)


def _slow_logs(sizes: Sizes) -> list[Log]:
    # A day has 86,400 seconds.
    messages = min(sizes.messages, 80_000)
    return [TINY, *(Log(messages, ("--keys=1000", f"--rate={rate}")) for rate in (10_000, 1))]


def _slow(sizes: Sizes) -> Iterator[Bar]:
    """Compare time per message of a fast topic and of one with a message per second."""
    _, fast, slow = _slow_logs(sizes)
    with _scratch("slow") as scratch:
        found = _both(fast, slow, scratch, sizes.times)
    yield _compared(
        "time per message, 10,000 to 1 message a second", found, fast.messages, slow.messages, 1.15
    )


def _consumers_logs(sizes: Sizes) -> list[Log]:
    many = (_ROLLING, f"--consumers={sizes.consumers}", f"--membership-changes={sizes.consumers}")
    return [TINY, Log(sizes.messages, ("--consumers=4",)), Log(sizes.messages, many)]


def _consumers(sizes: Sizes) -> Iterator[Bar]:
    _, few, many = _consumers_logs(sizes)
    with _scratch("consumers") as scratch:
        found = _both(few, many, scratch, sizes.times)
    name = f"{sizes.consumers:,} consumers, {sizes.consumers:,} changes, against 4 without"
    yield _compared(name, found, few.messages, many.messages, 2)


def _dispatchers_logs(sizes: Sizes) -> list[Log]:
    return [TINY, Log(sizes.messages), Log(sizes.messages, dispatchers=sizes.small_dispatchers)]


def _dispatchers(sizes: Sizes) -> Iterator[Bar]:
    _, one_log, many = _dispatchers_logs(sizes)
    with _scratch("dispatchers") as scratch:
        found = _both(one_log, many, scratch, sizes.times)
    name = f"1 to {sizes.small_dispatchers:,} dispatchers, one task"
    yield _compared(name, found, one_log.messages, many.messages, 2)
    yield _memory(f"peak memory, {sizes.small_dispatchers:,} dispatchers", found["after"], "one task")


def _both(before: Log, after: Log, scratch: Path, times: int) -> dict[str, list[Measured]]:
    sides = [
        ("before", "bench.replay:product", _replay_of(before, scratch)),
        ("after", "bench.replay:product", _replay_of(after, scratch)),
    ]
    return in_turns(sides, times, cores=1)


def _compared(name: str, found: dict[str, list[Measured]], before: int, after: int, bar: float) -> Bar:
    of_before, of_after = per_message(found["before"], before), per_message(found["after"], after)
    detail = f"{median_seconds(of_before):.3f} then {median_seconds(of_after):.3f} us a message"
    return ratio(name.format(f"{before:,}", f"{after:,}"), of_after, of_before, bar, detail)


def _fold(sizes: Sizes) -> Iterator[Bar]:
    log = replay_log(sizes)
    with _scratch("fold") as scratch:
        found = in_turns(
            [("fold", "bench.replay:fold_alone", _replay_of(log, scratch))], sizes.times, cores=1
        )["fold"]
    rate = log.messages / median_seconds(found)
    # At least, not at most: shown beside the table's other information.
    yield Bar("fold alone, one core", rate, None, "messages/s", "wanted: at least 2,000,000")


def _verify_logs(sizes: Sizes) -> list[Log]:
    trace = (_ROLLING, "--level=T")
    return [Log(1000, (*trace, "--keys=100", "--consumers=4")), Log(sizes.trace_messages, trace)]


def _verify(sizes: Sizes) -> Iterator[Bar]:
    tiny, log = _verify_logs(sizes)
    arguments = {"source": _source(log), "warm": _source(tiny)}
    found = in_turns([("verify", "bench.replay:verify_trace", arguments)], sizes.times, cores=1)["verify"]
    rate = log.messages / median_seconds(found)
    yield Bar("verify of a trace, one core", rate, None, "messages/s", f"{log.messages:,} messages")


def _ingest_logs(sizes: Sizes) -> list[Log]:
    return [Log(sizes.json_messages, (_ROLLING,), form="jsonl.gz"), Log(sizes.json_messages, (_ROLLING,))]


def _ingest(sizes: Sizes) -> Iterator[Bar]:
    packed, parquet = _ingest_logs(sizes)
    day = first_day(_source(parquet))
    with _scratch("ingest") as scratch:
        found = in_turns(
            [
                (
                    "ingest",
                    "bench.ingest:product",
                    {"source": _source(packed), "into": str(scratch / "staged"), "day": day},
                ),
                ("pyarrow.json", "bench.ingest:baseline", {"source": _source(packed)}),
            ],
            sizes.times,
            cores=2,
        )
    yield ratio("ingest of gzip'd JSONL against pyarrow.json", found["ingest"], found["pyarrow.json"], 2)


def _pipeline_logs(sizes: Sizes) -> list[Log]:
    return [Log(sizes.pipeline_messages, (_ROLLING,), dispatchers=200)]


def _pipeline(sizes: Sizes) -> Iterator[Bar]:
    (log,) = _pipeline_logs(sizes)
    day = first_day(_source(log))
    with _scratch("pipeline") as scratch:
        home = {"home": str(scratch / "home"), "day": day}
        measure("bench.pipeline:prepare", {"source": _source(log), **home})
        found = in_turns(
            [
                ("pipeline", "bench.pipeline:product", home),
                (
                    "Spark alone",
                    "bench.pipeline:baseline",
                    {"source": _source(log), "into": str(scratch / "sorted")},
                ),
            ],
            sizes.times,
            cores=2,
        )
    yield ratio("pipeline on local[2] against Spark alone", found["pipeline"], found["Spark alone"], 0.7)
    for stage in ("ingest", "replay", "aggregates"):
        spent = sorted(run.facts[f"{stage}_seconds"] for run in found["pipeline"])
        yield Bar(f"  of it {stage}", spent[len(spent) // 2], None, "s", f"{log.messages:,} messages")


def _store(sizes: Sizes) -> Iterator[Bar]:
    """Compare a home in an object store with one in a local folder."""
    if not sizes.store:
        raise BenchError("no store was named: --store s3://bucket/prefix, with AWS_* in the environment")
    (log,) = _pipeline_logs(sizes)
    day = first_day(_source(log))
    with _scratch("store") as scratch:
        homes = {"store": {"home": f"{sizes.store}/bench", "day": day}}
        homes["folder"] = {"home": str(scratch / "home"), "day": day}
        for home in homes.values():
            measure("bench.pipeline:prepare", {"source": _source(log), **home})
        sides = [(name, "bench.pipeline:product", home) for name, home in homes.items()]
        found = in_turns(sides, sizes.times, cores=2)
    yield ratio("home in a store against a local folder", found["store"], found["folder"], 1.3)


#: Days of the long log that is run day by day, and its dispatchers.
_SCALE_DAYS: Final = 10
_SCALE_DISPATCHERS: Final = 200


def _scale_logs(sizes: Sizes) -> list[Log]:
    rate = sizes.scale_messages / _SCALE_DAYS / _SCALE_DISPATCHERS / 86_400
    return [Log(sizes.scale_messages, (f"--rate={rate:.6g}",), dispatchers=_SCALE_DISPATCHERS)]


def _scale(sizes: Sizes) -> Iterator[Bar]:
    """Run a long log day by day; what an earlier run has done is not done again."""
    (log,) = _scale_logs(sizes)
    folder = _SCRATCH / f"scale-{log.folder.name}"
    segments, home, done = folder / "segments", folder / "home", Done(folder / "done.json")
    begins = first_day(_source(log))
    if not (folder / "cut").exists():
        cut = {"source": _source(log), "into": str(segments), "day": begins, "days": _SCALE_DAYS}
        measure("bench.days:cut", cut)
        (folder / "cut").touch()
    for number in range(len(done.days), _SCALE_DAYS):
        arguments = {"segments": str(segments), "home": str(home), "first_day": begins, "number": number}
        found = measure("bench.scale:day", arguments, cores=2)
        done.add(found.seconds, {**found.facts, "driver_mb": found.peak_mb})
        # The landing folder has them: a broker's host deletes what was pulled, too.
        shutil.rmtree(segments / f"{number:02}")
        say(f"  day {number + 1} of {_SCALE_DAYS}: {found.seconds:.0f} s")
    yield from _bars_of_scale(done.days, log.messages)


def _bars_of_scale(days: Sequence[dict[str, Any]], messages: int) -> Iterator[Bar]:
    seconds = [found["seconds"] for found in days]
    detail = f"{messages / sum(seconds):,.0f} messages/s; days of {min(seconds):.0f} to {max(seconds):.0f} s"
    yield Bar(f"{messages:,} messages in {len(days)} days", sum(seconds), None, "s", detail)
    for stage in ("pull", "ingest", "replay", "aggregates"):
        figures = [found[stage] for found in days]
        detail = ", ".join(
            (
                f"reads {sum(figure['read_mb'] for figure in figures) / 1e3:.1f} GB",
                f"keeps {sum(figure['kept_mb'] for figure in figures) / 1e3:.1f} GB",
                f"disk of a day at most {max(figure['disk_peak_mb'] for figure in figures) / 1e3:.1f} GB",
                f"worker at most {max(figure['worker_mb'] for figure in figures):.0f} MB",
            )
        )
        yield Bar(f"  of it {stage}", sum(figure["seconds"] for figure in figures), None, "s", detail)
    driver = max(found["driver_mb"] for found in days)
    yield Bar("  driver's peak memory", driver, None, "MB", "without the JVM")


def _spread_logs(sizes: Sizes) -> list[Log]:
    return [Log(sizes.messages), Log(sizes.messages, dispatchers=sizes.small_dispatchers)]


def _spread(sizes: Sizes) -> Iterator[Bar]:
    one_log, many = _spread_logs(sizes)
    day = first_day(_source(one_log))
    with _scratch("spread") as scratch:
        homes = {name: {"home": str(scratch / name), "day": day} for name in ("before", "after")}
        for log, home in zip((one_log, many), homes.values(), strict=True):
            measure("bench.pipeline:prepare", {"source": _source(log), **home})
        sides = [(name, "bench.pipeline:product", home) for name, home in homes.items()]
        found = in_turns(sides, sizes.times, cores=2)
    name = f"1 to {sizes.small_dispatchers:,} dispatchers, whole pipeline"
    yield _compared(name, found, one_log.messages, many.messages, 2)


#: Days of the log that is run day by day, and its dispatchers.
_DAYS: Final = 30
_DAILY_DISPATCHERS: Final = 4


def _days_logs(sizes: Sizes) -> list[Log]:
    rate = sizes.messages / _DAYS / _DAILY_DISPATCHERS / 86_400
    return [Log(sizes.messages, ("--consumers=4", f"--rate={rate:.6g}"), dispatchers=_DAILY_DISPATCHERS)]


def _days(sizes: Sizes) -> Iterator[Bar]:
    """Compare the last day of a log of many days with the second: time, bytes read, memory, tasks."""
    (log,) = _days_logs(sizes)
    day = first_day(_source(log))
    with _scratch("days") as scratch:
        segments = {"source": _source(log), "into": str(scratch / "segments"), "day": day, "days": _DAYS}
        measure("bench.days:cut", segments)
        arguments = {"segments": segments["into"], "home": str(scratch / "home"), "day": day}
        facts = measure("bench.days:run", arguments | {"days": _DAYS, "times": sizes.times}, cores=2).facts
    for figure, unit in (("seconds", "s"), ("read_mb", "MB"), ("worker_mb", "MB"), ("tasks", "tasks")):
        early, late = (median(run[figure] for run in facts[side]) for side in ("early", "late"))
        detail = f"{early:.1f} {unit}, then {late:.1f} {unit}"
        yield Bar(f"day {_DAYS} against day 2: {figure}", late / early, 1.15, "x", detail)


def _start(sizes: Sizes) -> Iterator[Bar]:
    with _scratch("start") as scratch:
        yield _later_start(scratch, sizes.times, None)


def _compile(sizes: Sizes) -> Iterator[Bar]:
    with _scratch("compile") as scratch:
        cache = str(scratch / "cache")
        found = in_turns([("compile", "bench.compiling:warm_up", {"cache": cache})], sizes.times, cores=2)
        yield Bar("compile, in setup", median_seconds(found["compile"]), 60, "s", "into an empty cache")


def _later_start(scratch: Path, times: int, cache: str | None) -> Bar:
    arguments = {"source": _tables(TINY), "staging": str(scratch / "staging"), "cache": cache}
    # The first start brings the libraries into the page cache.
    found = in_turns([("start", "bench.compiling:later_start", arguments)], times + 1, cores=2)["start"][1:]
    return Bar(
        "compile, at a later start", median_seconds(found), 2, "s", "a whole process with a first replay"
    )


def _source(log: Log) -> str:
    return str(log.folder / "log")


def _tables(log: Log) -> str:
    return str(log.folder / "tables")


def _replay_of(log: Log, scratch: Path) -> dict[str, Any]:
    return {"source": _tables(log), "staging": str(scratch / "staged"), "warm": _tables(TINY)}


def _copy_of(log: Log, scratch: Path) -> dict[str, Any]:
    return {"source": _tables(log), "staged": str(scratch / "staged"), "into": str(scratch / "copied")}


class _scratch:  # noqa: N801 - used like a function
    """A folder for one case's output, empty at first and removed at the end."""

    def __init__(self, name: str) -> None:
        self._folder = _SCRATCH / name

    def __enter__(self) -> Path:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return self._folder

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


CASES: Final = (
    *(_of_rule(rule) for rule in RULES),
    Case("growth", _growth_logs, _growth),
    Case("keys", _keys_logs, _keys),
    Case("slow", _slow_logs, _slow),
    Case("consumers", _consumers_logs, _consumers),
    Case("dispatchers", _dispatchers_logs, _dispatchers),
    Case("fold", lambda sizes: [TINY, replay_log(sizes)], _fold),
    Case("verify", _verify_logs, _verify),
    Case("ingest", _ingest_logs, _ingest),
    Case("start", lambda _sizes: [TINY], _start),
    Case("compile", lambda _sizes: [], _compile, quick=False),
    Case("pipeline", _pipeline_logs, _pipeline, quick=False),
    Case("spread", _spread_logs, _spread, quick=False),
    Case("days", _days_logs, _days, quick=False),
    Case("store", _pipeline_logs, _store, quick=False, asked=True),
    Case("scale", _scale_logs, _scale, quick=False, asked=True),
)


def run(case: Case, sizes: Sizes) -> list[Bar]:
    """Measure one case; its inputs must be there (``bench.generated.provide``). Raises ``BenchError``."""
    say(f"{case.name}:")
    return list(case.run(sizes))
