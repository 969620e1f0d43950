"""Errors of the core. Each says what was wrong, where, and what to do next; none is raised after state changed."""

from __future__ import annotations


class DispatchAuditError(Exception):
    """Base of all errors this package raises on purpose."""


class ProfileError(DispatchAuditError):
    """A broker version or setting from which no rule can be derived."""


class UnsupportedRuleError(DispatchAuditError):
    """The profile is understood, but this core version does not replay its rule yet."""


class LogError(DispatchAuditError):
    """The log itself cannot be right: an event that no legal history contains at this point.

    ``where`` names file and line (or dispatcher and seq), ``rule`` the rule that was broken.
    """

    def __init__(self, message: str, *, where: str = "", rule: str = "") -> None:
        super().__init__(f"{where}: {message}" + (f" (rule: {rule})" if rule else "") if where else message)
        self.where = where
        self.rule = rule


class IllegalTransitionError(LogError):
    """An event that the state machine of a rule does not allow; the state is as it was before the event."""
