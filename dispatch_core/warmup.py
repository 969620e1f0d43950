"""Compile the data plane once and leave it in numba's cache: ``python -m dispatch_core.warmup``.

Runs one tiny life of a dispatcher through every compiled function, with the argument types that replays use.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from dispatch_core import profiles
from dispatch_core.audit import kernel as audit
from dispatch_core.key_shared import KeySharedDispatcher


def main() -> None:
    """Touch every compiled function; says how long it took."""
    began = time.monotonic()
    core = KeySharedDispatcher(
        profiles.resolve("4.2.4"), np.array([11858, 51461, 11858]), np.ones(3, np.int64), 3
    )
    for consumer in (1, 2):
        core.join(consumer, f"c{consumer}")
        core.join_selector(consumer)
        core.flow(consumer, 10)
        core.flow_applied(consumer, 10)
    core.attempt_read()
    core.read_done("Normal", [0, 1, 2])
    core.finish_round(core.round("Normal", [0, 1, 2]), has_more=True)
    released = core.pending_ack_removed(0)
    core.ack_begins(released.consumer)
    core.ack_ends(released.consumer, 1)
    core.acknowledge(0)
    holder = core.pending_ack_removed(1).consumer
    core.redelivered(holder, core.redeliver(holder, [1]))
    core.unblock(2)
    core.leave(1)
    core.attempt_read()
    core.leave(2)
    core.check_invariants()
    nothing32, nothing64 = np.empty(0, np.int32), np.empty(0, np.int64)
    audit.scan(
        np.empty(0, np.int8),
        nothing32,
        np.zeros(1, np.int64),
        nothing32,
        nothing32,
        0,
        0,
        0,
        nothing64,
        nothing64,
        False,
        True,
    )
    print(f"data plane compiled in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
