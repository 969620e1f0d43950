"""Errors of the core. Each says what was wrong, where, and what to do next; none is raised after state changed."""

from __future__ import annotations

from typing import Self


class DispatchAuditError(Exception):
    """Base of all errors this package raises on purpose."""


class ProfileError(DispatchAuditError):
    """A broker version or setting from which no rule can be derived.

    ``what``: what is wrong. The message goes on with ``advice``, which holds for logs and command lines; whoever met it
    elsewhere, as in a file of settings, gives its own.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what + advice)
        self.what = what


class UnsupportedRuleError(DispatchAuditError):
    """The profile is understood, but this core version does not replay its rule yet."""


class LogError(DispatchAuditError):
    """The log itself cannot be right: an event that no legal history contains at this point.

    ``where`` names file and line (or the seq), ``event`` the kind of line, ``rule`` the rule that was broken. The core
    knows neither file nor line: who read the log adds them with ``at``.

    >>> error = LogError("consumer 9 was never added", rule="events come from known consumers")
    >>> print(error.at("trace.jsonl.gz:17 (seq 16)", "ack"))
    trace.jsonl.gz:17 (seq 16): ack: consumer 9 was never added (rule: events come from known consumers)
    """

    def __init__(self, message: str, *, where: str = "", event: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.event = event
        self.rule = rule

    def __str__(self) -> str:
        before = "".join(f"{part}: " for part in (self.where, self.event) if part)
        return before + self.message + (f" (rule: {self.rule})" if self.rule else "")

    def at(self, where: str, event: str) -> Self:
        """The same error with the place where it was met."""
        return type(self)(self.message, where=where, event=event, rule=self.rule)


class IllegalTransitionError(LogError):
    """An event that the state machine of a rule does not allow; the state is as it was before the event."""


class SelectorRefusedError(DispatchAuditError):
    """A Key_Shared selector does not take a consumer (BrokerServiceException.ConsumerAssignException).

    ``reason`` is what the broker answers the client, with consumers written as ``C<number>``; ``consumer`` the one that
    was refused. The selector is as it was before.
    """

    def __init__(self, consumer: int, reason: str) -> None:
        super().__init__(
            f"consumer {consumer} is refused: {reason}; nobody's ranges have changed. It may subscribe again once "
            "that is settled"
        )
        self.consumer = consumer
        self.reason = reason
