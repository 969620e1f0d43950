"""The broker's dispatch core as a pure fold over a recorded log, and the audit of what it did.

``docs/architecture.md`` says how the rooms fit together. Nothing in this package but ``recording`` and ``cli`` does I/O.
"""

from typing import Final

#: Part of every snapshot's key and of every state row: results of different core versions are never mixed.
CORE_VERSION: Final = "0.1.0"
__version__: Final = CORE_VERSION
