"""Scripts come from their seeds alone, results are kept, and what goes wrong is shrunk."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak import summary
from tests.soak.judging import Result, comparable
from tests.soak.running import Results
from tests.soak.script import (
    CLASSES,
    CURSOR_MOVES,
    RELOADS,
    SECOND_VERSION_FROM,
    Script,
    Step,
    class_of,
    is_quiet,
    script_of,
)
from tests.soak.shrinking import shrink

#: Of some scripts of version 1, as it was before there was a version 2.
DIGEST = "4e99a1f07e6a4c455b979ac679d74b9c7805883e14139eb523b8cd7276bfef5c"
#: Of both versions of the scripts.
SEEDS = (*range(400), *range(SECOND_VERSION_FROM, SECOND_VERSION_FROM + 400))


@pytest.fixture(scope="module")
def scripts() -> list[Script]:
    return [script_of(seed) for seed in SEEDS]


def test_a_seed_gives_one_script(scripts: list[Script]) -> None:
    again = [json.dumps(script_of(seed).as_json()) for seed in SEEDS]
    assert again == [json.dumps(script.as_json()) for script in scripts]
    assert len(set(again)) == len(again)


def test_names_tell_class_and_pace(scripts: list[Script]) -> None:
    assert {class_of(script.name) for script in scripts} == set(CLASSES)
    assert [is_quiet(script.name) for script in scripts] == [seed % 2 == 0 for seed in SEEDS]
    assert [script.quiet_ms > 0 for script in scripts] == [seed % 2 == 0 for seed in SEEDS]


def test_all_actions_and_types_come(scripts: list[Script]) -> None:
    kinds = Counter(step.what for script in scripts for step in script.steps)
    assert {
        "join",
        "leave",
        "crash",
        "publish",
        "receive",
        "ack",
        "ack_cumulative",
        "nack",
        "redeliver_all",
    } <= set(kinds)
    assert {*CURSOR_MOVES, "dispatch_rate", "unacked_limit", "busy"} <= set(kinds)
    assert {script.type for script in scripts} == {"Key_Shared", "Failover", "Exclusive", "Shared"}
    assert any(script.delays for script in scripts)
    assert any(script.batching for script in scripts)
    assert any(step.ranges for script in scripts for step in script.steps)
    assert any(step.priority for script in scripts for step in script.steps)


def test_seeds_of_the_first_version_keep_their_scripts() -> None:
    """A seed that somebody has noted gives the script that it gave then."""
    digest = hashlib.sha256()
    for seed in range(0, SECOND_VERSION_FROM, 50):
        row = script_of(seed).as_json()
        assert row.pop("batch_messages") == 0
        assert row.pop("mixed_keys") is False
        for step in row["steps"]:
            assert step.pop("read_compacted") is False
        digest.update(json.dumps(row).encode())
    assert digest.hexdigest() == DIGEST


def test_the_second_version_has_more_for_one_active_consumer(scripts: list[Script]) -> None:
    second = [script for script in scripts if int(script.name.split("-", 1)[0]) >= SECOND_VERSION_FROM]
    assert any(script.reads_compacted for script in second)
    for kind in ("Failover", "Exclusive"):
        own = [script for script in second if script.type == kind]
        assert len(own) > 40
        steps = [step for script in own for step in script.steps]
        assert {"ack_parts", "nack", "redeliver_all", "compact", *RELOADS} <= {step.what for step in steps}
        assert {step.count for step in steps if step.what == "ack_cumulative"} == {0, 1, 2, 7}
        assert {script.batch_messages for script in own} == {0, 3, 12, 30}
        assert {script.mixed_keys for script in own} == {False, True}


def test_consumers_of_failover_join_again_with_another_priority(scripts: list[Script]) -> None:
    levels: dict[tuple[str, str | None], set[int]] = {}
    for script in scripts:
        for step in script.steps:
            if step.what == "join":
                levels.setdefault((script.name, step.consumer), set()).add(step.priority)
    assert any(len(of_one) == 3 for of_one in levels.values())


def test_a_step_names_a_consumer_that_has_joined(scripts: list[Script]) -> None:
    for script in scripts:
        joined: set[str | None] = {None}
        for step in script.steps:
            if step.what == "join":
                joined.add(step.consumer)
            assert step.consumer in joined


def test_sticky_ranges_of_connected_consumers_do_not_overlap(scripts: list[Script]) -> None:
    for script in scripts:
        owned: dict[str | None, set[int]] = {}
        for step in script.steps:
            if step.what == "join" and step.ranges is not None:
                own = {hash_ for start, end in step.ranges for hash_ in range(start, end + 1)}
                assert not any(own & other for other in owned.values())
                owned[step.consumer] = own
            elif step.what in ("leave", "crash", "delete_subscription"):
                owned.pop(step.consumer, None)


def test_results_are_kept_and_a_cut_row_is_not(tmp_path: Path) -> None:
    file = tmp_path / "home" / "results.jsonl"
    row = Result(3, "3-ch-racing", 10, 1, 0, {"dispatch": [10, 1, 0]})
    Results(file).add(row)
    with file.open("a") as cut:
        cut.write('{"seed": 4, "na')
    results = Results(file)
    assert results.rows == [row]
    assert results.left([2, 3, 4]) == [2, 4]
    results.add(replace(row, seed=4))
    assert [kept.seed for kept in Results(file).rows] == [3, 4]


def test_shrinking_ends_at_its_limit() -> None:
    script = replace(script_of(0), steps=tuple(Step("pause", count=i) for i in range(64)))
    tried: list[int] = []

    def still(shorter: Script) -> bool:
        tried.append(len(shorter.steps))
        return any(step.count == 40 for step in shorter.steps)

    assert shrink(script, still, 3).steps == script.steps[32:]
    assert tried == [32, 0, 16]


def test_the_summary_adds_up() -> None:
    rows = [
        Result(0, "0-ch-quiet", 100, 0, 0, {"dispatch": [60, 0, 0], "hash": [40, 0, 0]}),
        Result(2, "2-ch-quiet", 50, 1, 2, {"dispatch": [50, 1, 2]}),
        Result(1, "1-sticky-racing", 10, 5, 0, {"dispatch": [10, 5, 0]}, disagreements=["order: …"]),
        Result(5, "5-shared-racing", not_judged="Shared"),
    ]
    text = [line.split() for line in summary.lines(rows)]
    assert ["ch,", "quiet", "2", "150", "2", "0.667", "%", "0", "0", "0"] in text
    assert ["all", "racing", "2", "10", "0", "50.000", "%", "1", "1", "0"] in text
    assert ["dispatch", "120", "2", "5.000", "%"] in text


def test_clients_are_asked_where_they_can_tell(scripts: list[Script]) -> None:
    plain = [
        script
        for script in scripts
        if not script.uses(*CURSOR_MOVES, *RELOADS, "redeliver_all")
        and not (script.type in ("Failover", "Exclusive") and script.uses("nack"))
    ]
    for script in scripts:
        labels = comparable(script)
        assert {"quarantined lines", "input"} <= labels
        ordered = script.type == "Key_Shared" and not script.out_of_order and script in plain
        assert ("duplicates" in labels) == ordered
        assert ("order" in labels) == (ordered and not script.delays)
        stays = "classic" in script.name or "sticky" in script.name
        stays = stays or script.reads_compacted or script.ends_with_nobody
        assert ("never received" in labels) == (script in plain and not stays)
    assert any(script.ends_with_nobody for script in scripts)


def test_what_is_wrong() -> None:
    assert Result(0, "0-ch-quiet", divergent=1).wrong
    assert Result(0, "0-ch-quiet", disagreements=["x"]).wrong
    assert not Result(0, "0-ch-quiet", not_judged="x", failure="y").wrong
