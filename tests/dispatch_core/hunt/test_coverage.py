"""Coverage of the rules: functions that were called, and ways of their conditional jumps."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from dispatch_core.hunt.coverage import Function, Watcher, jumps_of

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow

SOURCE = """
def sign(value):
    if value > 0 and value < 10:
        return 1
    for _ in range(2):
        assert value is not None
    return 0

class Some:
    def never(self):
        return 1 if self else 2
"""


@pytest.fixture
def module(tmp_path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module below ``dispatch_core``, as far as an importer can tell."""
    path = tmp_path / "sample.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = spec_from_file_location("dispatch_core.sample", path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setitem(sys.modules, "dispatch_core.sample", made)
    return made


def watched(module: ModuleType, *values: int) -> dict[str, Function]:
    with Watcher(("sample",)) as watcher:
        for value in values:
            module.sign(value)
    return {function.name: function for function in watcher.functions()}


def test_ways_of_conditions_are_counted(module: ModuleType) -> None:
    found = watched(module, 5)
    assert found["sign"] == Function("sample", "sign", 1, 2, 6, [3, 5])
    assert found["Some.never"] == Function("sample", "Some.never", 0, 0, 2, [11])
    assert watched(module, 5, 11)["sign"] == Function("sample", "sign", 2, 5, 6, [3])
    assert watched(module, 5, 11, -1, 5)["sign"] == Function("sample", "sign", 4, 6, 6, [])


def test_an_assertion_is_no_branch(module: ModuleType) -> None:
    assert [*jumps_of(module.sign.__code__).lines.values()] == [3, 3, 5]


def test_who_watched_before_watches_again(module: ModuleType) -> None:
    before = sys.gettrace()
    watched(module, 1)
    assert sys.gettrace() is before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Failover", "Shared"])
def test_rules_without_keys_are_watched_interpreted(kind: str) -> None:
    """In a process of its own; the same schedules reach the same."""
    interpreted(
        "from dispatch_core.hunt.campaign import campaign\n"
        "from dispatch_core.hunt.coverage import watch\n"
        f"asked = campaign(['4.2.4'], subscription_type='{kind}')\n"
        "functions, again = (watch(asked.profile('4.2.4'), asked.aim, range(2), 30) for _ in range(2))\n"
        "assert functions == again\n"
        "assert sum(function.calls > 0 for function in functions) > 20\n"
        "assert all(0 <= function.reached <= function.branches for function in functions)\n"
    )


def test_rules_of_key_shared_are_watched_interpreted() -> None:
    """In a process of its own; more schedules reach no less."""
    interpreted(
        "from dispatch_core.hunt.campaign import campaign\n"
        "from dispatch_core.hunt.coverage import watch\n"
        "asked = campaign(['4.0.0'], assignments=['subscriptionKeySharedUseConsistentHashing=false'])\n"
        "few, more = (watch(asked.profile('4.0.0'), asked.aim, range(1), n) for n in (20, 200))\n"
        "assert [f.name for f in few] == [f.name for f in more]\n"
        "assert all(a.calls <= b.calls and a.reached <= b.reached for a, b in zip(few, more))\n"
        "calls = {(f.module, f.name): f.calls for f in more}\n"
        "assert calls['gates', 'first_gate'] > 100, calls\n"
        "assert calls['broker_steps', 'join'] > 100, calls\n"
        "assert calls['broker_steps', 'move_forward'] == 0, 'not asked for'\n"
        "assert sum(f.reached for f in more) > 300\n"
    )


def interpreted(text: str) -> None:
    """Run a program in a process that compiles nothing."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
