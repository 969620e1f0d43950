"""Delays, limits, transactions and deletions that the log has lines of: what they explain, and what they don't.

A log whose ``records`` lists them and that has no such line shows that they did not happen: then the fault is certain.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.dispatch_core.audit.cursor_moves import Line, faults, judged, lines_of, name_of, write
from tests.dispatch_core.audit.logged_behaviour import CASES, with_behaviour, write_case
from tests.sample import some

ROOT: Final = Path(__file__).resolve().parents[3]
STORED: Final = ROOT / "tests" / "data" / "cases"
#: Whole recordings; those of later numbers are cut.
SAMPLES: Final = sorted((ROOT / "tests" / "data" / "operations").glob("*/legal-00*"))
SHARED: Final = some(sorted((ROOT.parent / "shared" / "operations").glob("*/legal-00*")), 5)
#: Findings of a sound log: what was left out or sent again for a reason that the log shows.
_LEGAL: Final = {"skipped", "redelivered", "unnecessary_blocking"}
#: Without their lines these logs leave open whether there was a fault: nobody was connected when the entries were stored,
#: the cursor passed them between two loads of the topic, or the rules of Shared are not replayed.
_OPEN: Final = ("61-", "62-", "01b-")


def certain(findings: Iterable[dict[str, Any]]) -> set[str]:
    return {finding["kind"] for finding in findings if not finding["uncertain"]}


# the shared cases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--complete",), (), ("--complete", "--limit", "assume_absent=none")])
@pytest.mark.parametrize("name", CASES)
def test_a_case_with_its_lines_passes(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, findings = judged(write_case(STORED / name, tmp_path / name, lines=True), capsys, *options)
    assert (verdict, {finding["kind"] for finding in findings} - _LEGAL) == ("PASS", set())


@pytest.mark.parametrize("options", [("--complete",), ("--complete", "--limit", "assume_absent=none")])
@pytest.mark.parametrize("name", CASES)
def test_a_case_whose_records_rule_its_lines_out_is_a_fault(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, findings = judged(write_case(STORED / name, tmp_path / name, lines=False), capsys, *options)
    if name.startswith(_OPEN):
        assert verdict == "UNKNOWN"
        return
    assert verdict == "FAIL"
    assert certain(findings) & set(CASES[name].without)


# recordings of real brokers ----------------------------------------------------------------------------------------------


def with_lines(folder: Path, out: Path, lines: list[Line] | None = None) -> Path:
    made = with_behaviour(lines_of(folder / "trace.jsonl.gz"), lines=True) if lines is None else lines
    return write(out / folder.parent.name / folder.name, folder / "messages.jsonl.gz", made)


def check_legal(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = with_lines(folder, tmp_path)
    for options in (("--complete",), ()):
        verdict, findings = judged(log, capsys, *options)
        assert (verdict, {finding["kind"] for finding in findings} - _LEGAL) == ("PASS", set())


def check_faults(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> int:
    lines = with_behaviour(lines_of(folder / "trace.jsonl.gz"), lines=True)
    messages = [line for line in lines_of(folder / "messages.jsonl.gz") if "position" in line]
    keys = {line["position"]: line.get("key") for line in messages}
    delayed = {line["position"] for line in messages if line.get("deliver_at_ms") is not None}
    shared, count = "-shared" in folder.name, 0
    for fault in faults(lines, keys, Random(seed)):
        if shared and fault.name == "reordered":
            continue  # nothing was promised
        if fault.name == "reordered" and fault.position in delayed:
            continue  # a later entry may overtake it
        if "-compacted" in folder.name and fault.name == "lost":
            continue  # a compacted read leaves out what a later entry of the key replaces
        verdict, findings = judged(
            with_lines(folder, tmp_path / fault.name, fault.lines), capsys, "--complete"
        )
        if shared and fault.name == "lost":
            assert verdict == "UNKNOWN"  # no rule says why an entry of Shared waits
            continue
        assert verdict == "FAIL", (fault.name, fault.position)
        # Of Failover a late change of the active consumer could explain the pair, but not that it went to the wrong one.
        late = ("divergence",) if fault.name == "split" and "-failover" in folder.name else ()
        assert certain(findings).intersection((*fault.kinds, *late)), (fault.name, fault.position)
        count += 1
    return count


@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_recording_with_its_lines_passes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_legal(folder, tmp_path, capsys)


@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_fault_beside_legal_behaviour_is_found_and_certain(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_faults(folder, tmp_path, capsys, seed=7) >= 2


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("folder", SHARED, ids=name_of)
def test_every_legal_recording_with_its_lines_passes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_legal(folder, tmp_path, capsys)
    assert check_faults(folder, tmp_path, capsys, seed=11) >= 2
