"""The story of a key: the key it is about, and the lines of the log around a decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.explain.divergence_story import MAX_AFTER, MAX_BEFORE, Story, story_of
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.tally import Finding

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
DRAIN = "designed-drain-one-by-one-ch"
FAILOVER = "designed-failover-modulo-p1"


def sample(name: str) -> DispatcherLog:
    (source,) = find_recordings([str(SAMPLE / name)])
    (log,) = read_recording(source).logs
    return log


def story_about(name: str, seq: int, decision_class: str, expected: str, recorded: str) -> Story:
    log = sample(name)
    finding = Finding(seq, 0, decision_class, "divergent", expected, recorded)
    return story_of(log, profile_of(log), finding)


def test_a_dispatch_decision_is_the_story_of_the_entry_that_only_one_answer_names() -> None:
    story = story_about(
        DRAIN, 314, "dispatch", "consumer 1 gets nothing", "gets [3:45, 3:55, 3:65, 3:75] (4)"
    )
    assert story.title == "key key-5 (hash 58952)"
    (marked,) = [line for line in story.lines if line.startswith(">")]
    assert marked.endswith("sent to consumer 2 (c2): 3:45, 3:55, 3:65 and 3:75")
    text = "\n".join(story.lines)
    for event in (
        "held back from consumer 2 (c2)",
        "acknowledged by consumer 1 (c1): 3:35",
        "no more pending on consumer 1 (c1): 3:35",
        "asked for in a replay read: 3:45, 3:55, 3:65 and 3:75",
    ):
        assert event in text
    assert len(story.lines) <= MAX_BEFORE + MAX_AFTER + 1


def test_two_swapped_entries_tell_of_the_first() -> None:
    story = story_about(DRAIN, 31, "dispatch", "consumer 1 gets [3:11, 3:12]", "gets [3:12, 3:11]")
    assert story.title == "key key-1 (hash 11858)"
    assert "stored 3:11 (key key-1)" in "\n".join(story.lines)


def test_a_draining_decision_is_the_story_of_the_hash_the_core_names() -> None:
    story = story_about(DRAIN, 53, "draining", "consumer 1 drains: 8664", "8665")
    assert story.title == "key key-7 (hash 8664)"
    assert any("hash 8664 begins to drain on consumer 1 (c1)" in line for line in story.lines)
    assert any("consumer 2 (c2) joins" in line for line in story.lines)


def test_permits_are_the_story_of_the_consumer() -> None:
    story = story_about(DRAIN, 256, "permits", "consumer 2: 1000", "1001")
    assert story.title == "consumer 2 (c2)"
    assert any("flow 1000 permits: consumer 2 (c2)" in line for line in story.lines)


def test_a_decision_about_nobody_shows_the_lines_around_it() -> None:
    story = story_about(DRAIN, 258, "round", "retry False, look ahead False", "retry True, look ahead False")
    assert story.title == "the lines around it"
    assert next(line for line in story.lines if line.startswith(">")).endswith("round_end")
    assert len(story.lines) == MAX_BEFORE + MAX_AFTER


def test_failover_has_no_hashes_so_the_story_is_the_entry_s() -> None:
    ledger = sample(FAILOVER).messages["ledger_id"][0].as_py()
    story = story_about(
        FAILOVER, 30, "dispatch", f"consumer 1 gets [{ledger}:2] (1)", f"gets [{ledger}:3] (1)"
    )
    assert story.title.startswith(f"entry {ledger}:2 (")


@pytest.mark.parametrize("seq", [0, 10**9])
def test_a_line_that_the_log_does_not_hold_has_a_story_too(seq: int) -> None:
    for decision_class in ("dispatch", "draining", "permits", "round"):
        story = story_about(DRAIN, seq, decision_class, "9999:1 and hash 4", "7")
        assert story.title


def test_names_and_keys_cannot_reach_the_terminal_raw() -> None:
    log = sample(DRAIN)
    at = log.messages.schema.get_field_index("key")
    keys = ["a\x1b[2Jb" for _ in range(log.messages.num_rows)]
    evil = DispatcherLog(
        log.recording,
        log.cluster,
        log.topic,
        log.subscription,
        log.broker,
        log.incarnation,
        log.header,
        log.messages.set_column(at, log.messages.schema.field(at), [keys]),
        log.events,
    )
    finding = Finding(31, 0, "dispatch", "divergent", "consumer 1 gets [3:11]", "nothing")
    story = story_of(evil, profile_of(evil), finding)
    assert "\x1b" not in story.title + "".join(story.lines)
