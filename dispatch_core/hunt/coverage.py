"""Count which rules and branches of the core random schedules of a hunt go through.

Compiled code cannot be watched, so this is a pass of its own over the first schedules of each seed, with the rules
interpreted (``NUMBA_DISABLE_JIT=1``): the same schedules, some hundred times slower. Measured are the functions of
``MODULES``: how often each was called, and which ways its conditional jumps went. A *branch* is one way of such a jump: of
an ``if``, a loop's end, an ``and``. Those of assertions do not count, as they always go one way.

``broker_steps`` and ``failover_steps`` are the steps of clients and of the broker, the other modules its rules.
"""

from __future__ import annotations

import dis
import importlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Final

from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.hunt.hunts import Aim, hunter_for

_SHARED_RULES: Final = (
    "broker.commands", "broker.cursor", "broker.gates", "broker.membership", "broker.pending_acks", "broker.permits",
    "broker.replay_set",
)  # fmt: skip
_OF_SHARED: Final = (
    "hunt.broker_steps", *_SHARED_RULES, "broker.cursor_moves", "broker.read_loop", "broker.read_loop_classic",
    "broker.round_robin",
)  # fmt: skip
#: Dispatcher → the modules that decide what it does, below ``dispatch_core``.
MODULES: Final[Mapping[Dispatcher, tuple[str, ...]]] = {
    Dispatcher.KEY_SHARED: (
        "hunt.broker_steps", *_SHARED_RULES, "broker.cursor_moves", "broker.read_loop",
        "broker.ordering.draining_hashes", "broker.ordering.last_sent_position",
    ),
    Dispatcher.KEY_SHARED_CLASSIC: (
        "hunt.broker_steps", *_SHARED_RULES, "broker.cursor_moves", "broker.read_loop", "broker.read_loop_classic",
        "broker.ordering.read_position",
    ),
    Dispatcher.SINGLE_ACTIVE: (
        "hunt.failover_steps", "broker.single_active_rules", "broker.cursor", "broker.cursor_moves",
    ),
    Dispatcher.SHARED: _OF_SHARED,
    Dispatcher.SHARED_CLASSIC: _OF_SHARED,
}  # fmt: skip
_Trace = Callable[[FrameType, str, Any], Any]


@dataclass(slots=True)
class Function:
    """A function, what was called of it, and which of its branches were gone through.

    ``missed``: lines of the jumps that went one way only, or were never reached.
    """

    module: str
    name: str
    calls: int = 0
    reached: int = 0
    branches: int = 0
    missed: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Write the fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Jumps:
    """The conditional jumps of a function: offset → offset of the instruction behind, and the line."""

    behind: Mapping[int, int]
    lines: Mapping[int, int]


def jumps_of(code: CodeType) -> _Jumps:
    """Find the conditional jumps of a function's code.

    >>> def at_most(value, limit):
    ...     assert limit > 0
    ...     return limit if value > limit else value
    >>> len(jumps_of(at_most.__code__).behind)
    1
    """
    behind, lines = {}, {}
    line = code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    starts = {start: number for start, _, number in code.co_lines()}
    for instruction, following in itertools.pairwise(instructions):
        line = starts.get(instruction.offset) or line
        jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        conditional = "_IF_" in instruction.opname or instruction.opname == "FOR_ITER"
        if jumps and conditional and following.opname not in ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT"):
            behind[instruction.offset] = following.offset
            lines[instruction.offset] = line
    return _Jumps(behind, lines)


class Watcher:
    """Watches the functions of some modules, given below ``dispatch_core``, while its block runs."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._jumps: dict[CodeType, _Jumps | None] = {}
        self._calls: Counter[tuple[str, str, int]] = Counter()
        self._ways: dict[tuple[str, str, int], set[tuple[int, bool]]] = {}
        self._module_of: dict[str, str] = {}
        self._codes: dict[tuple[str, str, int], CodeType] = {}
        self._before: Any = None
        for module in modules:
            name = f"dispatch_core.{module}"
            loader: Any = importlib.import_module(name).__loader__
            whole: CodeType = loader.get_code(name)
            self._module_of[whole.co_filename] = module
            for code in _functions_of(whole):
                self._codes[self._key(code)] = code

    def _key(self, code: CodeType) -> tuple[str, str, int]:
        return self._module_of[code.co_filename], code.co_qualname, code.co_firstlineno

    def __enter__(self) -> Watcher:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)

    def functions(self) -> list[Function]:
        """List the functions of the modules, also those that nobody called."""
        found = []
        for key, code in self._codes.items():
            jumps, ways = jumps_of(code), self._ways.get(key, set())
            function = Function(
                key[0].removeprefix("broker.").removeprefix("hunt."), key[1], self._calls[key]
            )
            function.reached, function.branches = len(ways), 2 * len(jumps.behind)
            missed = (at for at in jumps.behind if not {(at, True), (at, False)} <= ways)
            function.missed = sorted({jumps.lines[at] for at in missed})
            found.append(function)
        return found

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> _Trace | None:
        code = frame.f_code
        if code not in self._jumps:
            known = code.co_filename in self._module_of and self._key(code) in self._codes
            self._jumps[code] = jumps_of(code) if known else None
        jumps = self._jumps[code]
        if jumps is None:
            return None
        key = self._key(code)
        self._calls[key] += 1
        ways = self._ways.setdefault(key, set())
        if len(ways) == 2 * len(jumps.behind):
            return None  # nothing is left to see
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return _watch_jumps(jumps.behind, ways)


def _watch_jumps(behind: Mapping[int, int], ways: set[tuple[int, bool]]) -> _Trace:
    """Return a function that notes, at each instruction, which way the jump before it has gone."""
    jump = -1

    def at_instruction(frame: FrameType, event: str, _argument: Any) -> _Trace:
        nonlocal jump
        if event == "opcode":
            if jump >= 0:
                ways.add((jump, frame.f_lasti == behind[jump]))
            jump = frame.f_lasti if frame.f_lasti in behind else -1
        return at_instruction

    return at_instruction


def _functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions within some code; not of classes and comprehensions themselves."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 1 and not constant.co_name.startswith("<"):  # CO_OPTIMIZED: no class
                yield constant
            yield from _functions_of(constant)


def watch(profile: Profile, aim: Aim, seeds: range, schedules: int) -> list[Function]:
    """Play the first ``schedules`` of each seed, and return what of the core they went through.

    In a process with ``NUMBA_DISABLE_JIT=1``, else compiled functions are not seen.
    """
    with Watcher(MODULES[profile.dispatcher]) as watcher:
        for seed in seeds:
            hunter = hunter_for(profile, aim, seed, None)
            hunter.limit = schedules
            while hunter.played < schedules:
                hunter.random()
    return watcher.functions()
