"""`dispatch-audit stats`: what people and programs get, at every level of log, and how bad input ends."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.audit.small_logs import added, flow, message, numbered, sent, write

DATA = Path(__file__).resolve().parents[2] / "data"
DRAIN = DATA / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch"
CLASSIC = DATA / "recordings" / "4.2.4" / "designed-rolling-restart-classic-ch"
SHARED = DATA / "operations" / "4.2.4" / "shared-0014-quiet"
#: In DRAIN: the middle of the silence behind seq 115, while c2 waits for six hashes of c1.
AT, AT_US = "08:20:19.204021", 1_795_249_219_204_021


@pytest.fixture(scope="module")
def level_e(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stripped")
    assert main(["strip", str(DRAIN), "--out", str(out)]) == 0
    return out / "4.2.4" / DRAIN.name


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_first_screen_says_what_holds_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DRAIN), "--at", AT]) == 0
    text = capsys.readouterr().out
    first = text.splitlines()[:12]
    assert DRAIN.name in first[0]
    assert any(line.startswith("  rules      4.2.4 sticky key, draining hashes") for line in first)
    assert any("0 divergent" in line for line in first)
    assert any("6 hashes, at most 6" in line for line in first)
    assert any("per delivery" in line for line in first)
    row = next(line for line in text.splitlines() if line.split()[:1] == ["8664"])
    assert row.split()[1:5] == ["c1", "c2", "4", "3"]
    assert row.endswith("3:7, 3:17, 3:27, 3:37")


def test_json_has_the_names_of_topics_stats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DRAIN), "--at", AT, "--json"]) == 0
    (shown,) = objects(capsys)
    assert set(shown) == {
        "recording", "cluster", "topic", "subscription", "incarnation", "broker_version", "rules", "level", "seq", "t_us",
        "from_t_us", "lines", "window_ms", "decisions", "assumes", "notes", "stats", "at_least", "not_known",
        "draining_pending_acks", "tracker", "reads", "key_changes", "dispatch_rate",
    }  # fmt: skip
    assert (shown["level"], shown["broker_version"], shown["stats"]["type"]) == ("T", "4.2.4", "Key_Shared")
    stats = shown["stats"]
    assert (stats["drainingHashesCount"], stats["drainingHashesUnackedMessages"], stats["msgInReplay"]) == (
        6,
        24,
        24,
    )
    c1 = stats["consumers"][0]
    assert {
        "availablePermits",
        "unackedMessages",
        "blockedConsumerOnUnackedMsgs",
        "avgMessagesPerEntry",
    } <= set(c1)
    assert c1["drainingHashes"][0] == {"hash": 8664, "unackMsgs": 4, "blockedAttempts": 3}
    assert sum(consumer["keyHashes"] for consumer in stats["consumers"]) == 65_535
    pending = shown["draining_pending_acks"][0]
    assert (pending["hash"], pending["consumerName"], pending["waitingName"]) == (8664, "c1", "c2")
    assert pending["messageIds"] == ["3:7", "3:17", "3:27", "3:37"]
    assert pending["for_ms"] == (shown["t_us"] - pending["since_t_us"]) / 1000 > 0
    assert shown["tracker"] == {
        "look_ahead_limit": 4000,
        "msgInReplay": 24,
        "msgInReplayPeak": 24,
        "msgInReplayPeak_t_us": shown["tracker"]["msgInReplayPeak_t_us"],
        "drainingHashes": 6,
        "drainingHashesPeak": 6,
        "drainingHashesPeak_t_us": shown["tracker"]["drainingHashesPeak_t_us"],
    }
    assert shown["not_known"] == {"consumers": []}
    assert set(shown["at_least"]) == {"msgBacklog", "consumers"}


def test_without_a_trace_values_are_sorted_by_what_is_known(
    level_e: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(level_e), "--at", AT, "--json"]) == 0
    (shown,) = objects(capsys)
    assert shown["level"] == "E"
    stats = shown["stats"]
    assert (stats["drainingHashesCount"], stats["drainingHashesUnackedMessages"]) == (6, 24)
    assert "blockedAttempts" not in stats["consumers"][0]["drainingHashes"][0]
    assert shown["not_known"]["consumers"][0]["blockedAttempts"]
    assert shown["at_least"]["msgInReplay"] <= 24
    assert "msgInReplay" not in stats
    assert shown["tracker"]["msgInReplayPeak"] is None
    assert shown["reads"]["entries_read"] is None
    assert shown["reads"]["read_amplification_at_least"] >= 1
    assert "a move of the cursor" in shown["assumes"]
    assert main(["stats", str(level_e), "--at", AT]) == 0
    text = capsys.readouterr().out
    assert "msgInReplay ≥ " in text
    assert "  assumes " in text


def test_a_classic_dispatcher_shows_read_positions_and_shared_no_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["stats", str(CLASSIC), str(SHARED), "--at", "2030-01-01", "--json"]) == 0
    classic, shared = objects(capsys)
    assert "no consumer" not in json.dumps(classic)
    assert classic["tracker"]["look_ahead_limit"] is None
    assert "drainingHashes" not in classic["tracker"]
    assert shared["key_changes"] is None
    assert shared["stats"]["type"] == "Shared"
    assert classic["key_changes"]["keys"] == len(
        {moved["key"] for moved in classic["key_changes"]["worst_keys"]}
    ) or (classic["key_changes"]["keys"] > 10)


def test_the_span_of_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DRAIN), "--from", AT, "--json"]) == 0
    (later,) = objects(capsys)
    assert main(["stats", str(DRAIN), "--to", AT, "--json"]) == 0
    (earlier,) = objects(capsys)
    assert main(["stats", str(DRAIN), "--json"]) == 0
    (every,) = objects(capsys)
    for name in ("entries_delivered", "entries_read"):
        assert later["reads"][name] + earlier["reads"][name] == every["reads"][name]
    assert later["from_t_us"] == AT_US
    counts = [
        sum(map(sum, (each["messages"] for each in shown["dispatch_rate"]["consumers"])))
        for shown in (later, earlier, every)
    ]
    assert counts[0] + counts[1] == counts[2]


def test_topic_and_subscription_choose_dispatchers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ["--dispatchers", "2", "--messages", "200", "--keys", "10", "--consumers", "2"]
    assert main(["generate", str(tmp_path / "logs"), *made, "--dispatchers-per-file", "2"]) == 0
    logs = str(tmp_path / "logs")
    assert main(["stats", logs, "--json"]) == 0
    topics = [shown["topic"] for shown in objects(capsys)]
    assert len(topics) == 2
    assert main(["stats", logs, "--topic", topics[1], "--subscription", "audit", "--json"]) == 0
    assert [shown["topic"] for shown in objects(capsys)] == [topics[1]]
    assert main(["stats", logs, "--topic", "other"]) == 2
    assert "no topic is called other; there are: " in capsys.readouterr().err


def test_lines_later_than_as_of_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DRAIN), "--as-of", str(AT_US), "--json"]) == 0
    (shown,) = objects(capsys)
    assert shown["stats"]["drainingHashesCount"] == 6
    assert shown["t_us"] < AT_US, "behind the last line nothing is known"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--at", "soon"], "--at soon: give a UTC time"),
        (["--from", "soon"], "--from soon: give a UTC time"),
        (["--at", "5"], "no line is as early as 5"),
        (["--at", "10:00:00", "--from", "11:00:00"], "is later than"),
        (["--broker-version", "two"], "two"),
    ],
)
def test_what_cannot_be_shown_is_said(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(DRAIN), *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("window", ["0", "-1", "x", "nan"])
def test_a_window_is_a_time(window: str) -> None:
    with pytest.raises(SystemExit):
        main(["stats", str(DRAIN), "--window", window])


def test_bad_lines_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    for file in DRAIN.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with (folder / "messages-extra.jsonl").open("w") as extra:
        extra.write("{broken\n")
    assert main(["stats", str(folder)]) == 2
    printed = capsys.readouterr()
    assert "rows set aside" in printed.err
    assert "Consumers" in printed.out


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [added(1, "a\x1b[2J<b>"), flow(1), sent(1, 0), added(2, "a\x1b[2J<b>"), sent(2, 1)]
    folder = write(tmp_path / "log", [message(0, "k\x1b[31m"), message(1, "k\x1b[31m")], numbered(events))
    assert main(["stats", str(folder)]) in (0, 1)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"a\x1b[2J<b> (connection 2)" in text


def test_the_broker_and_a_divergent_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A delivery to another consumer than the rules choose is said, and the exit code is 1."""
    with gzip.open(DRAIN / "trace.jsonl.gz", "rt") as lines:
        trace = [json.loads(line) for line in lines]
    line = next(each for each in trace if each["kind" if "kind" in each else "format"] == "round_end")
    line["in_replay"] += 5
    folder = tmp_path / "divergent"
    folder.mkdir()
    (folder / "messages.jsonl.gz").write_bytes((DRAIN / "messages.jsonl.gz").read_bytes())
    with gzip.open(folder / "trace.jsonl.gz", "wt") as out:
        out.writelines(json.dumps(each) + "\n" for each in trace)
    assert main(["stats", str(folder), "--json"]) == 1
    (shown,) = objects(capsys)
    assert shown["decisions"]["divergent"] >= 1
    assert "differ from the rules" in shown["notes"][0]


def test_the_example_of_the_document_is_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = DATA.parents[1]
    monkeypatch.chdir(root)
    blocks = (root / "docs" / "stats.md").read_text("utf-8").split("```\n")
    at = next(
        number for number, block in enumerate(blocks) if block.startswith("dispatch-audit stats tests/data")
    )
    assert main(blocks[at].split()[1:]) == 0
    assert capsys.readouterr().out.rstrip() == blocks[at + 2].rstrip()
