"""Which recordings a conformance test looks at where all of them take long: every few, unless a whole run is asked for.

``make conformance-all`` (``DISPATCH_AUDIT_CONFORMANCE=all``) looks at all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: Whether all recordings are looked at by every test.
WHOLE: Final = os.environ.get("DISPATCH_AUDIT_CONFORMANCE") == "all"


def some(items: Iterable[T], step: int) -> list[T]:
    """Every ``step``-th of them, or all."""
    return list(items)[:: 1 if WHOLE else step]
