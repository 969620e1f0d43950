"""Player of ``hash`` lines: from key bytes to the sticky key hash of every kind of selector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dispatch_core.broker import hashing, profiles

Spaces = tuple[tuple[str, hashing.HashSpace], ...]


def rules(version: str, _line: dict[str, Any]) -> Spaces:
    """Return the hash space of each kind of selector in a release."""
    split = profiles.resolve(version, {"subscriptionKeySharedUseConsistentHashing": False}).hash_space
    spaces = {
        "auto_split": split,
        "consistent": profiles.resolve(version).hash_space,
        "sticky": profiles.resolve(version, key_shared_mode="STICKY").hash_space,
    }
    if "ring_keeps_owner" in profiles.resolve(version).changes:
        spaces["consistent_classic"] = hashing.CONSISTENT_CLASSIC
    return tuple(spaces.items())


def play(spaces: Spaces, line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the only answer of a line."""
    raw = bytes.fromhex(line["key_hex"])
    try:
        text: str | None = raw.decode()
    except UnicodeDecodeError:
        text = None
    murmur = hashing.h31(raw)
    answer: dict[str, Any] = {
        "key": text,
        "h31": murmur,
        "h31_string": None if text is None else hashing.h31(hashing.utf8(text)),
    }
    yield answer | {name: space.sticky(murmur) for name, space in spaces}
