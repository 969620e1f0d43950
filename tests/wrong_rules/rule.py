"""What a wrong rule is, and how one is written down."""

from __future__ import annotations

from dataclasses import dataclass

from tests.wrong_rules.switch import Edit, Release, Switch


@dataclass(frozen=True, slots=True)
class WrongRule:
    """``meaning``: what the broker would do if it were so."""

    meaning: str
    switches: tuple[Switch, ...]


def edit(meaning: str, where: str, old: str, new: str) -> WrongRule:
    """``where``: ``module:function``, in which ``old`` reads ``new``."""
    module, _, function = where.partition(":")
    return WrongRule(meaning, (Edit(module, function, old, new),))


def release(meaning: str, change: str) -> WrongRule:
    """A change of releases that is there where it is not, and the other way round."""
    return WrongRule(meaning, (Release(change),))
