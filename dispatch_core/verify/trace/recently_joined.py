"""Base for traces of the two rules of recently joined consumers: forget a consumer that leaves at the right line.

In the first read attempt of a removal the consumer still counts as recently joined; the rule forgets it after that, or at
the end of the removal if no attempt is logged (PersistentStickyKeyDispatcherMultipleConsumers.removeConsumer, 3.x and
PIP-282).
"""

from __future__ import annotations

from typing import Any, ClassVar

from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.key_shared import KeySharedVerifier


class RecentlyJoinedVerifier(KeySharedVerifier):
    """State of one verification, as for 4.x, with the steps of a removal under a rule of recently joined consumers.

    These releases count the permits of a consumer whose connection has broken (getAvailablePermits).
    """

    breaks: ClassVar[tuple[bool, ...]] = (False,)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._leaving: int | None = None  # out of the list, still counted as recently joined

    def _on_selector_removed(self, line: Line) -> None:
        if who(line) in self.core.connected():
            self._leaving = who(line)
        super()._on_selector_removed(line)

    def _on_read_attempt(self, line: Line) -> None:
        super()._on_read_attempt(line)
        self._forget_leaving()

    def _on_consumer_removed(self, line: Line) -> None:
        super()._on_consumer_removed(line)
        self._forget_leaving()

    def _forget_leaving(self) -> None:
        if self._leaving is not None:
            self.core.forget(self._leaving)
            self._leaving = None
