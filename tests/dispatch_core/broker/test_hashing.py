"""Key bytes, murmur and sticky key hashes: worked values of the broker's classes."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import resolve
from dispatch_core.recording.schema import MESSAGES

# key, h31, 4.x range split, 4.x consistent hashing, classic consistent hashing
WORKED = [
    ("", 0, 1, 1, 1),
    ("key-1", 414258592, 5536, 11858, 414258593),
    ("key-2", 1945654540, 21772, 51461, 1945654541),
    ("key-3", 2034982562, 24226, 55278, 2034982563),
    ("key-a", 718796664, 63352, 8785, 718796665),
    ("key-b", 981437452, 35852, 50828, 981437453),
    ("NONE_KEY", 504741539, 48803, 56505, 504741540),
    ("ключ", 442048578, 8258, 15004, 442048579),
    ("日本", 1155135810, 63810, 15901, 1155135811),
    ("😀", 1051995898, 12026, 28079, 1051995899),
    ("producer-1-0", 664740111, 8463, 18607, 664740112),
    ("key-30884", 1362034688, 1, 20784, 1362034689),  # slot 0, which 4.x takes for "not set"
    ("key-4415", 2103083685, 2103083685 % 65536, 1, 2103083686),
    ("standalone-0-5", 1646429396, 34004, 59127, 1646429397),
    ("AAEC/w==", 1033688062, 54270, 4508, 1033688063),  # as text; decoded it is a different key, see below
]


@pytest.mark.parametrize(("key", "h31", "split", "ring", "classic"), WORKED)
def test_worked_values(key: str, h31: int, split: int, ring: int, classic: int) -> None:
    assert hashing.h31(key.encode()) == h31
    assert hashing.RANGE_4X.sticky(h31) == split
    assert hashing.CONSISTENT_4X.sticky(h31) == ring
    assert hashing.CONSISTENT_CLASSIC.sticky(h31) == classic
    assert hashing.MURMUR_31.sticky(h31) == h31


def test_precedence_of_key_bytes() -> None:
    ordering = base64.b64encode(b"order").decode()
    assert hashing.dispatch_key("k", False, ordering, "p", 1, fallback=True) == b"order"
    assert hashing.dispatch_key("AAEC/w==", True, None, "p", 1, fallback=True) == bytes([0, 1, 2, 255])
    assert hashing.dispatch_key("AAEC/w==", False, None, "p", 1, fallback=True) == b"AAEC/w=="
    assert hashing.dispatch_key("", False, None, "p", 1, fallback=True) == b""  # presence counts, not length
    assert hashing.dispatch_key(None, None, None, "standalone-0", 5, fallback=True) == b"standalone-0-5"
    assert hashing.dispatch_key(None, None, None, "standalone-0", 5, fallback=False) is None


@pytest.mark.parametrize(
    ("version", "mode", "config", "space"),
    [
        ("3.0.17", "AUTO_SPLIT", {}, hashing.MURMUR_31),
        ("3.3.9", "STICKY", {}, hashing.MURMUR_31),
        ("4.0.0-preview.1", "AUTO_SPLIT", {}, hashing.MURMUR_31),
        ("4.0.0", "AUTO_SPLIT", {}, hashing.CONSISTENT_4X),
        ("4.2.4", "AUTO_SPLIT", {"subscriptionKeySharedUseConsistentHashing": False}, hashing.RANGE_4X),
        ("5.0.1", "STICKY", {}, hashing.RANGE_4X),
        (
            "4.2.4",
            "AUTO_SPLIT",
            {"subscriptionKeySharedUseClassicPersistentImplementation": True},
            hashing.CONSISTENT_CLASSIC,
        ),
        (
            "4.2.4",
            "STICKY",
            {"subscriptionKeySharedUseClassicPersistentImplementation": True},
            hashing.RANGE_4X,
        ),
    ],
)
def test_hash_space_by_selector_and_release(
    version: str, mode: str, config: dict[str, bool], space: hashing.HashSpace
) -> None:
    assert resolve(version, config, key_shared_mode=mode).hash_space == space


def test_a_decoded_base64_key_is_another_key() -> None:
    raw = hashing.dispatch_key("AAEC/w==", True, None, None, None, fallback=True)
    assert raw is not None
    assert hashing.h31(raw) == 713355028
    assert [space.sticky(713355028) for space in (hashing.RANGE_4X, hashing.CONSISTENT_4X)] == [61204, 6554]


@pytest.mark.parametrize(("version", "key"), [("3.3.9", None), ("4.0.0-preview.1", None), ("4.0.0", b"p-7")])
def test_key_less_entries_by_release(version: str, key: bytes | None) -> None:
    fallback = resolve(version).fallback_key
    assert hashing.dispatch_key(None, None, None, "p", 7, fallback=fallback) == key
    assert hashing.dispatch_key(None, None, None, None, 7, fallback=fallback) is None
    assert hashing.dispatch_key(None, None, None, "p", None, fallback=fallback) is None


@given(st.integers(0, 2**31 - 1), st.sampled_from(list(range(4))))
def test_sticky_hashes_lie_in_their_space(murmur: int, which: int) -> None:
    space = (hashing.CONSISTENT_4X, hashing.RANGE_4X, hashing.CONSISTENT_CLASSIC, hashing.MURMUR_31)[which]
    value = space.sticky(murmur)
    assert space.start <= value <= space.last
    assert value != hashing.NOT_SET or not space.reserve_zero


def test_text_that_is_no_base64_is_an_error() -> None:
    with pytest.raises(ValueError, match="not base64"):
        hashing.entry_key("no base64!", True, None)


def row(**fields: object) -> dict[str, object]:
    base = {"cluster": "c", "topic": "t", "ledger_id": 1, "entry_id": 0, "num_messages": 1}
    return base | {"producer": "p", "sequence_id": 7, "key_b64": False} | fields


keys = st.one_of(
    st.builds(lambda key: {"key": key}, st.text(max_size=6)),
    st.builds(lambda raw: {"key": base64.b64encode(raw).decode(), "key_b64": True}, st.binary(max_size=6)),
    st.builds(
        lambda key, raw: {"key": key, "ordering_key_b64": base64.b64encode(raw).decode()},
        st.text(max_size=3),
        st.binary(max_size=6),
    ),
    st.builds(lambda value: {"key_h31": value}, st.integers(0, 2**31 - 1)),
    st.just({}),
    st.just({"producer": None}),
)


@given(st.lists(keys, max_size=12), st.booleans())
def test_the_whole_table_agrees_with_one_row_at_a_time(
    fields: list[dict[str, object]], fallback: bool
) -> None:
    rows = [row(**item) for item in fields]
    hashes = hashing.entry_h31(pa.Table.from_pylist(rows, schema=MESSAGES), fallback=fallback)
    for item, value in zip(rows, hashes.tolist(), strict=True):
        if item.get("key_h31") is not None:
            assert value == item["key_h31"]
            continue
        key = hashing.dispatch_key(
            item.get("key"),
            item["key_b64"],
            item.get("ordering_key_b64"),
            item["producer"],
            7,
            fallback=fallback,
        )
        assert value == hashing.h31(hashing.NONE_KEY if key is None else key)
