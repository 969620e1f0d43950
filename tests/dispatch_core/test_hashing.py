"""Key bytes, murmur and sticky key hashes: worked values of the broker's classes."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core import hashing
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
    ("key-30884", 1362034688, 1, 20784, 1362034689),
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
