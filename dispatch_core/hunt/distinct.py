"""Estimate how many states of a dispatcher schedules have led to: a HyperLogLog sketch of their hashes.

A state is all that later decisions depend on: statistics and scratch do not count (``Arena.matters``). A sketch is an array
of ``SIZE`` registers; that of several hunts is the highest value of each. Its standard error is 0.8 %.

>>> sketch = new_sketch()
>>> estimate(sketch)
0
>>> matters = np.array([-1, 0])  # the second word is scratch
>>> for first in range(1000):
...     for second in range(3):
...         note(np.array([first, second]), matters, sketch)
>>> 980 < estimate(sketch) < 1020
True
"""

from __future__ import annotations

from math import log
from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker.state import I8, I64

_BITS: Final = 14
SIZE: Final = 1 << _BITS
_REST: Final = 50  # bits of a hash that do not choose the register
# constants of FNV-1a and of the finalizer of MurmurHash3, as signed numbers
_BASIS: Final = -3750763034362895579
_PRIME: Final = 1099511628211
_MIX_1: Final = -49064778989728563
_MIX_2: Final = -4265267296055464877
_LOW_31: Final = 0x7FFFFFFF


def new_sketch(size: int = SIZE) -> I8:
    """Make an empty sketch."""
    return np.zeros(size, np.uint8)


@compiled_inside
def hash_of(words: I64, matters: I64) -> int:
    """Return the hash of a state, 64 bits; in plain Python it warns of overflows, which are wanted."""
    value = _BASIS
    for at in range(len(words)):
        value = (value ^ (words[at] & matters[at])) * _PRIME
    value = (value ^ ((value >> 33) & _LOW_31)) * _MIX_1
    value = (value ^ ((value >> 33) & _LOW_31)) * _MIX_2
    return value ^ ((value >> 33) & _LOW_31)


@compiled
def note(words: I64, matters: I64, sketch: I8) -> None:
    """Note a state."""
    value = hash_of(words, matters)
    rest = (value >> _BITS) & ((1 << _REST) - 1)
    rank = 1
    while rank <= _REST and (rest >> (_REST - rank)) & 1 == 0:
        rank += 1
    at = value & (SIZE - 1)
    sketch[at] = max(sketch[at], rank)


def estimate(sketch: I8) -> int:
    """Return how many states there are, about."""
    empty = int((sketch == 0).sum())
    raw = 0.7213 / (1 + 1.079 / SIZE) * SIZE**2 / float((2.0 ** -sketch.astype(np.float64)).sum())
    if raw <= 2.5 * SIZE and empty:
        return round(SIZE * log(SIZE / empty))
    return round(raw)
