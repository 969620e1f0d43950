"""Sample of the recordings for slow tests.

``make conformance-all`` (``DISPATCH_AUDIT_CONFORMANCE=all``) uses all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: True if every test uses all recordings.
WHOLE: Final = os.environ.get("DISPATCH_AUDIT_CONFORMANCE") == "all"


def some(items: Iterable[T], step: int) -> list[T]:
    """Return every ``step``-th item, or all of them in a whole run."""
    return list(items)[:: 1 if WHOLE else step]
