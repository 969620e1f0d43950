"""Who answers when: how long a consumer takes for an entry, and whether it asks for it again.

Kept apart from what the broker decides, so that other worlds can put other clients here. Latencies are drawn beforehand:
a table of samples, of which each delivery takes one that its entry, consumer and number of deliveries pick. So an answer
needs no state, and the same delivery always has the same one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.jit import compiled_in_place as compiled
from dispatch_core.simulation.world import SALT, World

#: Samples in a table.
SAMPLES: Final = 1 << 16
_MIX: Final = 2654435761  # spreads neighbouring entries over the table (Knuth)
_MASK: Final = (1 << 31) - 1


def latencies(random: np.random.Generator, mean_us: int, sigma: float = 0.8) -> npt.NDArray[np.int64]:
    """Log-normal samples with the given mean, at least one microsecond each."""
    samples = random.lognormal(np.log(mean_us) - sigma * sigma / 2, sigma, SAMPLES)
    return np.maximum(samples.astype(np.int64), 1)


def refusals(random: np.random.Generator, share: float) -> npt.NDArray[np.uint8]:
    """Which deliveries are asked for again: a share of the table."""
    return (random.random(SAMPLES) < share).astype(np.uint8)


@compiled
def _sample(world: World, number: int, slot: int, deliveries: int, size: int) -> int:
    mixed = ((number & _MASK) * _MIX + slot * 40503 + deliveries * 7919 + world.w[SALT] * 104729) & _MASK
    return (mixed >> 8) & (size - 1)


@compiled
def answers_after(world: World, slot: int, number: int, deliveries: int) -> int:
    """How long after its arrival a consumer is done with an entry, microseconds."""
    at = _sample(world, number, slot, deliveries, len(world.latency_us))
    return world.latency_us[at] * world.slowness[slot]


@compiled
def asks_again(world: World, slot: int, number: int, deliveries: int) -> bool:
    """Whether the consumer gives the entry back instead of acknowledging it."""
    return world.refuses[_sample(world, number, slot + 1, deliveries, len(world.refuses))] == 1


@compiled
def permits_due(world: World, slot: int) -> int:
    """The client took one more message from its queue: permits it grants now, half a queue at a time, or 0.

    Source: ConsumerImpl.increaseAvailablePermits.
    """
    world.processed[slot] += 1
    if world.processed[slot] < max(world.queue[slot] // 2, 1):
        return 0
    permits = world.processed[slot]
    world.processed[slot] = 0
    return permits
