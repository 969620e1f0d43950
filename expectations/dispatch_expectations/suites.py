"""The promises of ``dispatch_core``, and the one on the user's own expectations."""

from __future__ import annotations

from typing import Final

from dispatch_core.audit.promises.every import PROMISES
from dispatch_core.audit.promises.promise import Promise
from dispatch_expectations.promise import CUSTOM

#: The user's own expectations (``own_expectations``): no checks of counts. Judged only if there is such a file.
CUSTOM_PROMISE: Final = Promise(
    name=CUSTOM, title="Own expectations", kept="every own expectation was met", checks=()
)
BY_NAME: Final = {promise.name: promise for promise in (*PROMISES, CUSTOM_PROMISE)}
