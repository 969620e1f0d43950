"""A wrong rule must show: under each wrong rule ``verify`` finds a divergent decision, and none under the right one.

Real recordings show most of them; the others have a check (``checks``) that fails under the wrong rule. All of it runs
interpreted, in a process of its own (see ``switch``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.wrong_rules.catalogue import WRONG_RULES
from tests.wrong_rules.checks import CHECKS
from tests.wrong_rules.recordings import SHOWN_BY
from tests.wrong_rules.switch import Edit, check_words, switched

ROOT = Path(__file__).resolve().parents[2]
DATA = tuple(ROOT / "tests" / "data" / name for name in ("recordings", "verify", "operations", "races"))

Answers = dict[tuple[str | None, str], dict[str, Any]]


def here(recording: str) -> Path | None:
    """Return the folder of a recording in this repository."""
    return next((data / recording for data in DATA if (data / recording).is_dir()), None)


def answers(requests: Iterable[tuple[str | None, str]]) -> Answers:
    """Run ``judge`` in a process of its own, without numba's compiler; return its answers."""
    asked = list(requests)
    done = subprocess.run(
        [sys.executable, "-m", "tests.wrong_rules.judge"],
        cwd=ROOT,
        input="".join(json.dumps(request) + "\n" for request in asked),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return {(item["rule"], item["what"]): item for item in said}


#: Rule → a recording in the repository on which it shows.
SHOWN_HERE = {
    name: str(folder)
    for name, recordings in SHOWN_BY.items()
    if (folder := next(filter(None, map(here, recordings)), None)) is not None
}


@pytest.fixture(scope="module")
def said() -> Answers:
    rules: list[tuple[str | None, str]] = [*SHOWN_HERE.items()]
    checks: list[tuple[str | None, str]] = [(rule, "check") for rule in CHECKS]
    return answers([*((None, folder) for folder in sorted(set(SHOWN_HERE.values()))), *rules, *checks])


@pytest.mark.parametrize("rule", SHOWN_HERE)
def test_verify_finds_it(said: Answers, rule: str) -> None:
    folder = SHOWN_HERE[rule]
    right, wrong = said[None, folder], said[rule, folder]
    assert right["judged"], folder
    assert right["divergent"] is None, folder
    assert wrong["judged"], wrong
    assert wrong["divergent"] is not None, f"{WRONG_RULES[rule].meaning}: not seen on {folder}"


@pytest.mark.parametrize("rule", CHECKS)
def test_its_own_check_finds_it(said: Answers, rule: str) -> None:
    result = said[rule, "check"]
    assert result["right"] is None, result
    assert result["wrong"], f"{WRONG_RULES[rule].meaning}: its check holds all the same"


def test_none_is_forgotten() -> None:
    """Every rule is shown by a recording or by a check."""
    assert len(WRONG_RULES) >= 25
    assert set(WRONG_RULES) == set(SHOWN_BY) | set(CHECKS)
    assert len(SHOWN_HERE) >= 60  # the other recordings are not in this repository


def test_each_rule_still_changes_something() -> None:
    """Also rules that only recordings beside the repository show, after the right rule was rewritten."""
    for rule in WRONG_RULES.values():
        for switch in rule.switches:
            if isinstance(switch, Edit):
                check_words(switch)


def test_words_that_are_gone_are_an_error() -> None:
    for function in ("SingleActiveDispatcher.leave", "SingleActiveDispatcher.flow"):
        with (
            pytest.raises(LookupError, match="say anew"),
            switched((Edit("single_active", function, "no such words", "others"),)),
        ):
            pass


def test_the_right_rule_holds_again_afterwards() -> None:
    from dispatch_core.broker.selectors import failover

    two = [failover.Candidate(1, "b", 0), failover.Candidate(2, "a", 0)]
    right = failover.pick(two, partition_index=0, topic="t", ring=False)
    with switched(WRONG_RULES["failover_by_join_order"].switches):
        assert failover.pick(two, partition_index=0, topic="t", ring=False) != right
    assert failover.pick(two, partition_index=0, topic="t", ring=False) == right
