"""Types of wrong rules: an edit of a function, or a change of releases that is inverted."""

from __future__ import annotations

from dataclasses import dataclass

from tests.wrong_rules.switch import Edit, Release, Switch


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
