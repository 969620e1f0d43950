"""Properties of the load generator's logs, and its command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.schema import KINDS
from dispatch_core.simulation.generate import generate
from dispatch_core.simulation.scenario import Scenario, ScenarioError
from dispatch_core.verify.trace.runner import verify
from tests.dispatch_core.simulation.simulated import logs, made, simulated

ROOT = Path(__file__).resolve().parents[3]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def sent_positions(events: pa.Table) -> list[tuple[int, int]]:
    lists = events.filter(pc.equal(events["kind"], "sent"))["positions"].to_pylist()
    return [(p["ledger_id"], p["entry_id"]) for positions in lists for p in positions]


# --- the logs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "jsonl.gz", "jsonl.zst"])
def test_same_arguments_same_bytes(form: str, tmp_path: Path) -> None:
    """A seed gives the same log every time, and another seed another log."""
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        simulated(tmp_path / name, form, seed=seed, churn="random", nack_share=0.01)
    first, same, other = (contents(tmp_path / name) for name in ("one", "same", "other"))
    assert first == same
    assert list(first) == list(other)
    assert all(first[name] != other[name] for name in first)


def test_all_formats_hold_the_same(tmp_path: Path) -> None:
    """Parquet and JSON lines are read alike."""
    forms = [simulated(tmp_path / form, form, churn="rolling-restart") for form in ("parquet", "jsonl")]
    for rows in ("messages", "events"):
        parquet, lines = (getattr(log, rows).drop(["source_file", "source_line"]) for log in forms)
        assert parquet.equals(lines)


def test_dispatchers_are_partitions_of_as_many_topics_as_asked_for(tmp_path: Path) -> None:
    """Dispatchers of one partition each, of two each, and without the option all of one topic."""
    named = {}
    for partitions in (1, 2, 0):
        arguments = [
            "--messages",
            "40",
            "--dispatchers",
            "4",
            "--consumers",
            "2",
            "--partitions",
            str(partitions),
        ]
        out = tmp_path / str(partitions)
        assert main(["generate", str(out), *arguments, "--subscription-type", "Failover"]) == 0
        named[partitions] = [
            (log.topic.rpartition("/")[2], log.header["partition_index"]) for log in logs(out)
        ]
    assert named[1] == [(f"generated-0000{topic}-partition-0", 0) for topic in range(4)]
    assert named[2] == [(f"generated-0000{topic}-partition-{p}", p) for topic in (0, 1) for p in (0, 1)]
    assert named[0] == [(f"generated-partition-{p}", p) for p in range(4)]
    with pytest.raises(ScenarioError, match="partitions: -1 is not within 0 to"):
        Scenario(partitions=-1)


@pytest.mark.parametrize(
    "rule",
    [{}, {"broker_version": "3.0.17"}, {"subscription_type": "Failover"}],
    ids=["draining hashes", "read position", "failover"],
)
def test_level_e_is_the_trace_without_its_inside(rule: dict[str, Any], tmp_path: Path) -> None:
    """A log of level E has the header and level-E lines of the same run, numbered anew, in the same order."""
    wanted = {"churn": "rolling-restart", "crashing_consumers": 1, "nack_share": 0.01, **rule}
    user = simulated(tmp_path / "E", **wanted)
    trace = simulated(tmp_path / "T", trace=True, **wanted)
    assert user.messages.drop(["source_file"]).equals(trace.messages.drop(["source_file"]))
    assert user.events["seq"].to_pylist() == list(range(1, len(user.events) + 1))
    assert not {kind for kind in pc.unique(user.events["kind"]).to_pylist() if KINDS[kind].level != "E"}
    level = pc.is_in(trace.events["kind"], pa.array([k.name for k in KINDS.values() if k.level == "E"]))
    stripped = trace.events.filter(level)
    inside = {name for kind in KINDS.values() for name in kind.trace_only}
    columns = [
        name
        for name in user.events.column_names
        if name not in inside | {"seq", "source_file", "source_line"}
    ]
    assert stripped.select(columns).equals(user.events.select(columns))
    assert {**trace.header, "format": user.header["format"]} == user.header


def test_every_message_is_sent_and_acknowledged(tmp_path: Path) -> None:
    """All published entries arrive despite joins and leaves; only unacknowledged entries come again."""
    log = simulated(tmp_path, churn="random", crashing_consumers=2, membership_changes=12)
    published = list(
        zip(log.messages["ledger_id"].to_pylist(), log.messages["entry_id"].to_pylist(), strict=True)
    )
    assert published == sorted(published)
    sent = Counter(sent_positions(log.events))
    assert set(sent) == set(published)
    assert sum(sent.values()) > len(published)  # a consumer crashed
    acked = log.events.filter(pc.equal(log.events["kind"], "ack"))["positions"].to_pylist()
    assert {(p["ledger_id"], p["entry_id"]) for positions in acked for p in positions} == set(published)


def test_slow_consumers_hold_their_keys_back(tmp_path: Path) -> None:
    """Entries for consumers without permits wait in the replay set; without slow consumers hardly any wait."""

    def most_waiting(folder: str, slow: int) -> int:
        log = simulated(tmp_path / folder, trace=True, slow_consumers=slow, ack_us=5_000, rate=3000)
        return int(pc.max(log.events["in_replay"]).as_py())

    assert most_waiting("slow", 2) > 50 > 10 * most_waiting("quick", 0)


def test_churn_changes_the_membership(tmp_path: Path) -> None:
    """The log has the given number of joins and leaves; a returning name is a new connection."""
    log = simulated(tmp_path, churn="rolling-restart", membership_changes=6)
    added = log.events.filter(pc.equal(log.events["kind"], "consumer_added"))
    assert len(added) == 4 + 3
    assert added["consumer"].to_pylist() == list(range(1, 8))
    assert len(set(added["name"].to_pylist())) == 4
    assert pc.sum(pc.equal(log.events["kind"], "consumer_removed")).as_py() == 3


def test_priority_levels_go_round_the_consumers(tmp_path: Path) -> None:
    log = simulated(tmp_path, priority_levels=(0, 0, 2))
    added = log.events.filter(pc.equal(log.events["kind"], "consumer_added"))
    levels = dict(zip(added["name"].to_pylist(), added["priority_level"].to_pylist(), strict=True))
    assert levels == {"consumer-0": 0, "consumer-1": 0, "consumer-2": 2, "consumer-3": 0}


@pytest.mark.parametrize("churn", ["none", "rolling-restart"])
def test_failover_is_active_at_the_highest_priority(churn: str, tmp_path: Path) -> None:
    """consumer-2 alone has level 0: nobody else gets anything while it is connected. Every decision verifies."""
    log = simulated(
        tmp_path,
        subscription_type="Failover",
        priority_levels=(1, 1, 0, 1),
        churn=churn,
        trace=True,
        settings={"activeConsumerFailoverDelayTimeMillis": 0},
    )
    assert verify(log).tally.total("divergent") == 0
    names = {
        line["consumer"]: line["name"] for line in log.events.to_pylist() if line["kind"] == "consumer_added"
    }
    connected: set[str] = set()
    got = Counter[tuple[bool, str]]()
    for line in log.events.to_pylist():
        name = names.get(line["consumer"], "")
        if line["kind"] == "consumer_added":
            connected.add(name)
        elif line["kind"] == "consumer_removing":
            connected.discard(name)
        elif line["kind"] == "sent":
            got["consumer-2" in connected, name] += 1
    assert got[True, "consumer-2"] > 0
    # Others: before it had joined, and what was under way when it came back.
    others = sum(count for (there, name), count in got.items() if there and name != "consumer-2")
    assert others <= got[True, "consumer-2"] // 10
    assert (sum(count for (there, _), count in got.items() if not there) > 0) == (churn != "none")


@pytest.mark.parametrize("version", ["4.2.4", "3.0.17"])
def test_key_shared_verifies_whatever_the_priorities(version: str, tmp_path: Path) -> None:
    log = simulated(tmp_path, broker_version=version, priority_levels=(2, 0, 1), churn="random", trace=True)
    tally = verify(log).tally
    assert tally.total("divergent") == 0
    assert {finding.decision_class for finding in tally.findings} <= {"position"}  # as without priorities
    assert tally.total("exact") > 1000


def test_keys_are_skewed(tmp_path: Path) -> None:
    """Keys follow Zipf: the first is the most frequent; with skew 0 all are equally frequent."""

    def largest_share(folder: str, skew: float) -> float:
        log = simulated(tmp_path / folder, key_skew=skew, keys=1000, messages=2000)
        return max(Counter(log.messages["key"].to_pylist()).values()) / 2000

    assert largest_share("even", 0) < 0.01 < 0.1 < largest_share("skewed", 1.1)


def test_nothing_is_left_over(tmp_path: Path) -> None:
    """The summary counts entries unacknowledged at the end: none, under rules that lose none."""
    assert made(tmp_path, churn="random").unacknowledged == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "rule",
    [{}, {"broker_version": "3.0.17"}, {"subscription_type": "Failover"}],
    ids=["draining hashes", "read position", "failover"],
)
def test_compiled_and_interpreted_write_the_same(rule: dict[str, Any], tmp_path: Path) -> None:
    """The log has the same bytes with ``NUMBA_DISABLE_JIT=1``."""
    settings = {
        "messages": 150,
        "rate": 1000,
        "keys": 20,
        "consumers": 3,
        "queue": 10,
        "nack_share": 0.02,
        **rule,
    }
    code = (
        "import sys; from pathlib import Path\n"
        "from dispatch_core.simulation.generate import generate\n"
        "from dispatch_core.simulation.scenario import Scenario\n"
        f"list(generate(Scenario(churn='random', trace=True, **{settings!r}), Path(sys.argv[1])))"
    )
    for name in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": name}
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], cwd=ROOT, check=True, env=environment
        )
    assert contents(tmp_path / "0") == contents(tmp_path / "1")


# --- the command ---------------------------------------------------------------------------------------------------


def test_command_writes_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints nothing on stdout and one line on stderr."""
    out = tmp_path / "out"
    options = [
        "--messages",
        "200",
        "--dispatchers",
        "2",
        "--consumers",
        "2",
        "--keys",
        "10",
        "--rate",
        "1000",
    ]
    assert main(["generate", str(out), *options, "--set", "dispatcherMaxReadBatchSize=16"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 dispatchers, 200 messages" in captured.err
    assert sorted(contents(out)) == [
        f"dispatcher-0000{number}/{name}.parquet" for number in (0, 1) for name in ("events", "messages")
    ]


def test_help_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    """The help shows every option with its default."""
    with pytest.raises(SystemExit) as exit_:
        main(["generate", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for word in (
        "--messages N",
        "--churn",
        "rolling-restart",
        "default 4.2.4",
        "--level {E,T}",
        "same bytes",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--messages", "-1"], "messages: -1 is not within"),
        (["--consumers", "0"], "consumers: 0"),
        (["--slow-consumers", "30"], "slow consumers: 30 of 20"),
        (["--key-skew", "-1"], "key skew"),
        (["--nack-share", "0.9"], "negative acks"),
        (["--ack-ms", "0"], "acknowledgement time"),
        (["--start-time", "yesterday"], "--start-time yesterday"),
        (["--start-time", "1950-01-01"], "before 1970"),
        (["--broker-version", "2.3.0"], "2.3.0"),
        (["--set", "dispatcherMaxReadBatch=5"], "dispatcherMaxReadBatchSize"),
        (["--set", "preciseDispatcherFlowControl=true"], "preciseDispatcherFlowControl"),
        (["--dispatchers-per-file", "0"], "dispatchers per file"),
        (["--priority-levels", "0,-1"], "--priority-levels 0,-1: give numbers from 0 on"),
        (["--priority-levels", "high"], "--priority-levels high"),
        (["--priority-levels", "3000000000"], "priority level: 3000000000 is not within"),
    ],
)
def test_bad_arguments_are_refused(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad options exit with 2 and a message, and nothing is written."""
    out = tmp_path / "out"
    assert main(["generate", str(out), *options]) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("options", [["--churn", "sometimes"], ["--format", "csv"], ["--messages", "many"]])
def test_unknown_words_are_refused(options: list[str], tmp_path: Path) -> None:
    """argparse's own exit code is the same 2."""
    with pytest.raises(SystemExit) as exit_:
        main(["generate", str(tmp_path / "out"), *options])
    assert exit_.value.code == 2


def test_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Existing files are not overwritten."""
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["generate", str(tmp_path), "--messages", "10"]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_scenario_without_messages(tmp_path: Path) -> None:
    """Consumers without published messages give a valid log."""
    (made,) = generate(Scenario(messages=0, consumers=2), tmp_path)
    assert (made.messages, made.unacknowledged) == (0, 0)
    with pytest.raises(ScenarioError, match="is none of none, rolling-restart"):
        Scenario(churn="always")
