"""Names that the pipeline's verdicts have besides the promises of ``dispatch_core``, and Great Expectations' severities."""

from __future__ import annotations

from typing import Final

from dispatch_core.audit import catalogue
from dispatch_core.audit.promises.promise import UNKNOWN, Check

#: Promise name of the verdict on the user's own expectations.
CUSTOM: Final = "custom"
#: Promise name of the verdict over all promises of a dispatcher.
ALL: Final = "all"
#: Stands for cluster, topic and subscription of what belongs to no dispatcher.
NO_DISPATCHER: Final = "*"

#: Great Expectations' severities by the audit's.
GX_SEVERITIES: Final = {
    catalogue.CRITICAL: "critical",
    catalogue.MAJOR: "critical",
    catalogue.MINOR: "warning",
    catalogue.INFO: "info",
}


def gx_severity(check: Check) -> str:
    """Return Great Expectations' severity of a check.

    What only leaves a promise open is a ``warning``. What breaks it is as severe as the worst of its kinds, and at least a
    ``warning``.
    """
    if check.decides == UNKNOWN:
        return "warning"
    worst_kind = catalogue.worst([catalogue.KINDS[kind].severity for kind in check.kinds])
    severity = GX_SEVERITIES[worst_kind or check.severity]
    return "warning" if severity == "info" else severity
