"""Only ``make test-recorder`` plays seeds on a broker, which Maven brings; the rest is tested everywhere."""

from __future__ import annotations

import os

if "DISPATCH_AUDIT_SOAK_TARGET" not in os.environ:
    collect_ignore = ["test_seeds.py"]
