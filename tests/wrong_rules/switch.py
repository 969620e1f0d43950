"""Declare deliberately wrong rules, and switch one on while a block runs.

A wrong rule is like a typing mistake in the source: an ``Edit`` names a function of ``dispatch_core`` and the words that
are replaced in it. The function is compiled anew in its module and replaces the old one everywhere. It is an error if the
words do not occur exactly once in the function, so that a list of edits cannot become outdated unnoticed. ``Release``
inverts a change of releases.

It works only if the data plane is plain Python (``NUMBA_DISABLE_JIT=1``), because machine code keeps its callees.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from dispatch_core.broker import profiles


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``old`` by ``new`` in ``function`` (``name`` or ``Class.name``) of ``dispatch_core.broker.<module>``."""

    module: str
    function: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Release:
    """Releases that have this change lose it, the others get it."""

    change: str


Switch = Edit | Release


@dataclass(frozen=True, slots=True)
class WrongRule:
    """A wrong rule. ``meaning``: the behaviour of a broker with this rule."""

    meaning: str
    switches: tuple[Switch, ...]


def edit(meaning: str, where: str, old: str, new: str) -> WrongRule:
    """Make a rule from edits in ``where`` (``module:function``): ``old`` is replaced by ``new``."""
    module, _, function = where.partition(":")
    return WrongRule(meaning, (Edit(module, function, old, new),))


def release(meaning: str, change: str) -> WrongRule:
    """Make a rule that inverts a change of releases: releases with it lose it, the others get it."""
    return WrongRule(meaning, (Release(change),))


@contextmanager
def switched(switches: tuple[Switch, ...]) -> Iterator[None]:
    """Apply a wrong rule inside the block only."""
    with ExitStack() as stack:
        for switch in switches:
            if isinstance(switch, Edit):
                stack.enter_context(_edited(switch))
            else:
                stack.enter_context(_toggled(switch.change))
        yield


@contextmanager
def _edited(edit: Edit) -> Iterator[None]:
    module = importlib.import_module(f"dispatch_core.broker.{edit.module}")
    path = edit.function.split(".")
    owner: Any = module
    for name in path[:-1]:
        owner = getattr(owner, name)
    old = inspect.getattr_static(owner, path[-1])
    new = _compiled_anew(edit, module, old)
    places = [(owner, path[-1])]
    if owner is module:
        places = [
            (known, name)
            for known in list(sys.modules.values())
            if (known.__name__ or "").startswith("dispatch_core")
            for name, value in vars(known).items()
            if value is old
        ]
    for place, name in places:
        setattr(place, name, new)
    try:
        yield
    finally:
        for place, name in places:
            setattr(place, name, old)


def _source(edit: Edit, function: Any) -> str:
    """Return the source of a function, which has the words that are replaced exactly once."""
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise LookupError(
            f"{edit.module}.{edit.function} holds {edit.old!r} {source.count(edit.old)} times, not once: "
            "the rule was rewritten, say anew what the wrong one is"
        )
    return source


def check_words(edit: Edit) -> None:
    """Check that the words of an edit are in its function; ``LookupError`` if not. Works on machine code, too."""
    function: Any = importlib.import_module(f"dispatch_core.broker.{edit.module}")
    for name in edit.function.split("."):
        function = inspect.getattr_static(function, name)
    _source(edit, function)


def _compiled_anew(edit: Edit, module: Any, old: Any) -> Any:
    function = old.__func__ if isinstance(old, staticmethod | classmethod) else old
    if not inspect.isfunction(function):
        raise TypeError(f"{edit.module}.{edit.function} is machine code: run with NUMBA_DISABLE_JIT=1")
    source = _source(edit, function)
    # Inside a function that has a __class__, so that a method's super() finds its class.
    name = edit.function.rpartition(".")[2]
    body = textwrap.indent(source.replace(edit.old, edit.new), "    ")
    wrapped = f"def _within(__class__):\n{body}\n    return {name}\n"
    flags = __future__.annotations.compiler_flag
    scope: dict[str, Any] = {}
    exec(compile(wrapped, f"<wrong {edit.function}>", "exec", flags), vars(module), scope)
    owner = edit.function.rpartition(".")[0]
    return scope["_within"](getattr(module, owner) if owner else None)


@contextmanager
def _toggled(change: str) -> Iterator[None]:
    if change not in profiles._CHANGES:
        raise LookupError(f"{change!r} is no change of a release")
    right, preview = profiles.contains, profiles._IN_PREVIEW
    profiles.contains = lambda version, name: right(version, name) != (name == change)
    profiles._IN_PREVIEW = preview ^ {change}
    profiles._resolved.cache_clear()
    try:
        yield
    finally:
        profiles.contains, profiles._IN_PREVIEW = right, preview
        profiles._resolved.cache_clear()
