"""Hunt alone kills mutants of the newest core; a sample of ``make mutants``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hunted.__main__ import edit_source, hunted
from tests.hunted.campaigns import NONE
from tests.hunted.mutants import MUTANTS
from tests.wrong_rules.switch import Edit

CORE = Path(__file__).resolve().parents[2] / "dispatch_core"


def test_there_are_thirty_and_each_is_a_rule_of_its_own() -> None:
    assert len(MUTANTS) == 30
    assert len({rule.switches for rule in MUTANTS.values()}) == 30


@pytest.mark.parametrize("name", MUTANTS)
def test_the_rule_that_a_mutant_changes_is_there(name: str, tmp_path: Path) -> None:
    for edit in MUTANTS[name].switches:
        if isinstance(edit, Edit):
            file = f"broker/{edit.module.replace('.', '/')}.py"
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CORE / file, tmp_path / file)
            edit_source(edit, tmp_path)
            assert (tmp_path / file).read_text() != (CORE / file).read_text()


@pytest.mark.slow  # what kills a mutant is played on the right core, whose search is compiled for that
@pytest.mark.parametrize(
    ("name", "promise"),
    [("draining_off", "split_key"), ("rewinds_too_far", "stuck"), ("leaving_permits_stay", "leak")],
)
def test_a_mutant_is_killed(name: str, promise: str) -> None:
    result = hunted(name, interpreted_s=60.0, compiled_s=0.0)
    assert result.killed
    assert result.answer.find.startswith(promise)
    assert len(result.answer.steps) <= 10


@pytest.mark.slow
def test_the_right_core_lives() -> None:
    result = hunted(NONE, interpreted_s=3.0, compiled_s=0.0)
    assert not result.killed
    assert result.schedules > 500
