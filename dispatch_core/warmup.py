"""Compile the data plane once and leave it in numba's cache: ``python -m dispatch_core.warmup``.

Runs one tiny life of a dispatcher through every compiled function, with the argument types that replays use.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import numpy as np

from dispatch_core import profiles
from dispatch_core.audit.scan import warm_up as audit_warm_up
from dispatch_core.key_shared import KeySharedDispatcher
from dispatch_core.key_shared_classic import ClassicKeySharedDispatcher


def _tiny_life(dispatcher: type[KeySharedDispatcher], version: str) -> None:
    """Joins, a round, an ack, a redelivery, leaves: every compiled function of one ordering rule."""
    core = dispatcher(profiles.resolve(version), np.array([11858, 51461, 11858]), np.ones(3, np.int64), 2)
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
    core.restore(core.save())
    core.leave(1)
    core.attempt_read()
    core.leave(2)
    core.check_invariants()


def main() -> None:
    """Touch every compiled function; says how long it took."""
    began = time.monotonic()
    # The loops of 4.x and of 3.x are compiled beside each other: one after the other takes more than a minute.
    classic = multiprocessing.get_context("spawn").Process(
        target=_tiny_life, args=(ClassicKeySharedDispatcher, "3.0.17")
    )
    classic.start()
    for version in ("4.2.4", "4.0.0-preview.1"):
        _tiny_life(KeySharedDispatcher, version)
    audit_warm_up()
    classic.join()
    # What both had to compile is in the cache under whichever name was written last; a second look costs nothing.
    _tiny_life(ClassicKeySharedDispatcher, "3.0.17")
    print(f"data plane compiled in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
