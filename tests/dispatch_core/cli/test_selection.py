"""``--topic``, ``--subscription``, ``--from``, ``--to`` and ``--failed-only`` choose what commands are about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.times import micros
from tests.dispatch_core.audit.small_logs import MIDNIGHT

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
CLASSIC = "designed-rolling-restart-classic-ch"
DRAIN = "designed-drain-one-by-one-ch"
#: The one topic of each of them.
TOPIC = f"persistent://public/default/rec-{CLASSIC}-10"

Objects = list[dict[str, Any]]


def objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Objects]:
    """The exit code, and the JSON objects that a command prints."""
    code = main([*arguments, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", [TOPIC, f"rec-{CLASSIC}-10", "*classic*"])
def test_a_topic_is_chosen_by_its_name_its_last_part_or_a_pattern(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = objects(capsys, "audit", str(SAMPLES), "--topic", name)
    assert code == 1
    assert {entry["topic"] for entry in found if "topic" in entry} == {TOPIC}
    assert [entry["recording"] for entry in found if "verdict" in entry] == [f"4.2.4/{CLASSIC}"]


@pytest.mark.parametrize("command", ["audit", "explain", "stats"])
def test_a_name_that_fits_nothing_is_complained_about(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(SAMPLES / CLASSIC), "--topic", "rec-designed-rolling"]) == 2
    said = capsys.readouterr()
    assert (
        said.err == f"dispatch-audit {command}: no topic is called rec-designed-rolling; there are: {TOPIC}\n"
    )
    assert main([command, str(SAMPLES / CLASSIC), "--subscription", "other"]) == 2
    assert "no subscription is called other; there are: audit" in capsys.readouterr().err


def test_only_what_failed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(SAMPLES), "--failed-only"]) == 1
    said = capsys.readouterr().out
    assert DRAIN not in said
    assert f"4.2.4/{CLASSIC}  FAIL\n" in said
    assert "per_key_order" in said
    assert "PASS   " not in said
    assert said.endswith("4 PASS, 1 FAIL\n")


def test_audit_begins_with_topic_rules_and_extent_and_ends_with_the_worst(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["audit", str(SAMPLES)]) == 1
    said = capsys.readouterr().out
    about = "Pulsar 4.2.4 sticky key, classic, read position, consistent hashing; from 2026-11-21 08:24:21.936, 2.83 s; "
    assert f"  {TOPIC}  audit\n  {about}720 entries stored, 958 sent, to 12 consumers\n" in said
    worst = said.partition("worst first:\n")[2].splitlines()
    assert worst[0].startswith(
        f"  4.2.4/{CLASSIC}  {TOPIC}  audit: per_key_order; 40 split_key, 23 out_of_order"
    )


def test_findings_before_a_time_are_left_out_and_its_lines_are_history(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(SAMPLES / CLASSIC)

    def found(*times: str) -> list[int]:
        _, shown = objects(capsys, "audit", path, *times)
        return sorted(entry["seqs"][-1] for entry in shown if entry.get("kind") == "out_of_order")

    everything = found()
    middle = 1795249463_400_000
    before, after = found("--to", str(middle)), found("--from", str(middle + 1))
    assert before
    assert after
    assert sorted([*before, *after]) == everything


def test_a_time_in_the_wrong_order_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    late, early = str(micros(MIDNIGHT) + 1), str(micros(MIDNIGHT))
    assert main(["audit", str(SAMPLES / DRAIN), "--from", late, "--to", early]) == 2
    assert "--from is later than --to" in capsys.readouterr().err


def test_explain_without_a_subject_lists_the_worst_and_explains_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", str(SAMPLES)]) == 1
    said = capsys.readouterr().out
    first, *_ = said.splitlines()
    assert first == "5 of 5 incarnations of dispatchers have a finding or a wait, the worst first:"
    assert said.index(TOPIC) < said.index(DRAIN)
    assert "split_key: key key-37 was at two consumers at once" in said
    assert "key key-37, hash 1298689019   Pulsar 4.2.4" in said
    asked = said.splitlines()[3].split()
    assert main(["explain", str(SAMPLES), *asked]) == 1
    assert "key key-37, hash 1298689019   Pulsar 4.2.4" in capsys.readouterr().out


def test_explain_without_a_subject_explains_the_longest_wait_of_a_clean_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = objects(capsys, "explain", str(SAMPLES / DRAIN))
    assert code == 0
    assert found[0]["subject"] == {"position": "3:49"}
    assert found[0]["text"] == "3:49 waited 2.86 s: draining_hash"
    assert main(["explain", str(SAMPLES / DRAIN), "--failed-only"]) == 0
    assert "no finding" in capsys.readouterr().out


def test_explain_leaves_out_what_was_before(capsys: pytest.CaptureFixture[str]) -> None:
    path, begin = str(SAMPLES / DRAIN), 1795249222_000_000
    _, everything = objects(capsys, "explain", path, "--key", "key-7")
    _, later = objects(capsys, "explain", path, "--key", "key-7", "--from", str(begin))
    times = [moment["t_us"] for moment in later if "t_us" in moment]
    assert min(times) >= begin
    assert len(times) < len(everything) - 1


@pytest.mark.slow
def test_reports_and_simulations_are_of_what_was_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "reports"
    assert main(["report", str(SAMPLES), "--out", str(out), "--failed-only"]) == 1
    assert sorted(page.stem for page in out.rglob("*.html")) == [CLASSIC, "index"]
    capsys.readouterr()
    _, rows = objects(
        capsys, "what-if", str(SAMPLES), "--topic", "*drain*", "--rules", "classic-ch", "--seeds", "2"
    )
    assert {row["topic"] for row in rows if row.get("topic")} <= {
        f"persistent://public/default/rec-{DRAIN}-1",
        "*",
    }
