"""Lines that a snapshot leaves out: the parts of a log, and who is known in each, are the same without them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from dispatch_core.recording.checkpoint import joins, leading
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import is_deleted, needed_later, parts_of
from dispatch_core.recording.schema import EVENTS, MESSAGES

Line = tuple[str, Any]
JOINS = ("consumer", "name", "consumer_id", "address", "priority_level", "key_shared_mode")

numbers = st.integers(1, 4)
connections = st.dictionaries(numbers, st.sampled_from([None, "w", "v"]), max_size=3)
lines = st.one_of(
    st.tuples(st.sampled_from(["consumer_added", "consumer_removed"]), numbers),
    st.tuples(st.just("checkpoint"), st.one_of(st.none(), connections)),
    st.tuples(st.sampled_from(["gap", "subscription_deleted", "limit"]), st.none()),
    st.tuples(st.just("header"), st.sampled_from(['{"a": 1}', '{"b": 2}', None])),
)


def table(listed: list[Line]) -> pa.Table:
    rows = []
    for seq, (kind, about) in enumerate(listed):
        row: dict[str, Any] = {"seq": seq, "t_us": seq, "kind": kind}
        if kind == "checkpoint":
            consumers = (
                None
                if about is None
                else [
                    number if name is None else {"consumer": number, "name": name}
                    for number, name in about.items()
                ]
            )
            row["checkpoint_json"] = json.dumps(
                {"mark_delete": "1:2"} | ({} if about is None else {"consumers": consumers})
            )
        elif kind == "header":
            row["header_json"] = about
        elif about is not None:
            row |= {"consumer": about, "name": f"n{about}"}
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=EVENTS)


def seen(events: pa.Table) -> list[Any]:
    """Read the rare lines of a log: by part the connections, the first state, whether it was deleted."""
    headers = events.filter(pc.equal(events["kind"], "header"))["header_json"].to_pylist()
    of_log = events.filter(pc.not_equal(events["kind"], "header"))
    log = DispatcherLog("", "c", "t", "s", None, 0, {}, MESSAGES.empty_table(), of_log)
    found: list[Any] = [[text for text in headers if text][-1:]]
    for part in parts_of(log):
        found.append((joins(part.events, JOINS), leading(part.events), is_deleted(part.events)))
    return found


@given(st.lists(lines, max_size=14), st.lists(lines, max_size=6))
@example([("consumer_added", 1), ("gap", None), ("header", None), ("checkpoint", {1: None})], [])
@example([("consumer_added", 1), ("gap", None)], [("checkpoint", {1: None})])
@example([("consumer_added", 1), ("subscription_deleted", None)], [("checkpoint", {1: "w"})])
@example([("checkpoint", {1: None}), ("checkpoint", {1: "w"}), ("checkpoint", {1: "v"})], [("gap", None)])
def test_later_lines_are_judged_the_same_without_them(listed: list[Line], later: list[Line]) -> None:
    rows = table([*listed, *later])
    rare, behind = rows.slice(0, len(listed)), rows.slice(len(listed))
    assert seen(pa.concat_tables([needed_later(rare), behind])) == seen(rows)
    assert needed_later(needed_later(rare)).equals(needed_later(rare))


def test_checkpoints_that_name_nobody_new_and_old_headers_go() -> None:
    joined = [("header", '{"a": 1}'), ("checkpoint", {1: "w"}), ("consumer_added", 2)]
    listed = [*joined, ("checkpoint", {1: "w", 2: "n2"}), ("header", '{"b": 2}'), ("checkpoint", {2: None})]
    assert needed_later(table(listed))["seq"].to_pylist() == [1, 2, 4]
    listed += [("checkpoint", {3: None}), ("gap", None), ("checkpoint", {1: None}), ("checkpoint", {1: None})]
    assert needed_later(table(listed))["seq"].to_pylist() == [1, 2, 4, 6, 7, 8]
