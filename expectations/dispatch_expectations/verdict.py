"""The verdict: a row of the table ``verdicts``, published by ``validate`` and read by pages and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dispatch_core.audit.promises.promise import UNKNOWN
from dispatch_core.audit.verdict import NOT_CERTAIN
from dispatch_core.tables import VERDICTS
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.moment import AS_OF


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one promise (or on ``all``) for one dispatcher in one interval.

    ``findings``: number of findings that decided the verdict; ``tolerated``: number of those that the policy allows;
    ``top_findings``: a sentence for each root cause, worst first, about as many kinds as fit.
    """

    interval_start: datetime
    cluster: str
    topic: str
    subscription: str
    incarnation: int
    promise: str
    verdict: str
    findings: int
    tolerated: int
    reason: str
    top_findings: tuple[str, ...] = ()

    @property
    def dispatcher(self) -> Dispatcher:
        """(cluster, topic, subscription)"""
        return self.cluster, self.topic, self.subscription

    @property
    def in_doubt(self) -> bool:
        """True if part of the promise could not be judged, so that a finding may exist without being reported."""
        return self.verdict == UNKNOWN or NOT_CERTAIN in self.reason

    @property
    def before_the_end(self) -> bool:
        """True if the interval was judged before its end: what went on then is not finished."""
        return AS_OF in self.reason

    def as_row(self) -> dict[str, Any]:
        """The row of the ``verdicts`` table."""
        return {name: getattr(self, name) for name in VERDICTS.names} | {
            "top_findings": list(self.top_findings)
        }
