"""A replay that goes on from a snapshot gives the tables of one from the beginning, wherever the log was cut."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from dispatch_core.audit.deliveries import fold
from dispatch_core.broker.ownership import OPEN
from dispatch_core.errors import SnapshotError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.snapshots import decoded, encoded
from tests.dispatch_core.audit.small_logs import T0_US, ack, added, flow, message, read, sent
from tests.dispatch_core.audit.test_found_everywhere import numbered, write
from tests.dispatch_core.logs_without_trace import recorded
from tests.dispatch_core.replay.interval_cuts import random_cuts, replays, span_us

CASES = Path(__file__).resolve().parents[2] / "data" / "cases"
RECORDINGS = [
    "recordings/4.2.4/designed-rolling-restart-ch",
    "recordings/4.2.4/designed-rolling-restart-classic-ch",
    "recordings/4.2.4/designed-negative-acks-ch",
    "recordings/4.2.4/designed-failover-modulo-p1",
    "verify/4.0.0-preview.1/random-0024-range-quiet",
]
_LOG = ("cluster", "topic", "subscription", "incarnation", "broker")
#: Loads of a topic, gaps, checkpoints, deletions.
SEVERAL_LOADS = [
    "22-broker-clock-skew-swaps-loads",
    "33-dup-after-reload-ack-in-checkpoint",
    "78-plain-unload-no-checkpoint",
]


@pytest.fixture(
    params=[(4096, 43_691, 131_072, 4096, 600_000_000), (50, 100, 0, 0, 0)],
    ids=["as it is", "small windows"],
)
def windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginnings, batches, windows and what a snapshot keeps as they are, and far smaller than any log."""
    beginning, batch, trim_above, saved, saved_us = request.param
    monkeypatch.setattr(fold, "KEEP_SAVED", saved)
    monkeypatch.setattr(fold, "SAVED_US", saved_us)
    monkeypatch.setattr(stream, "BEGINNING_LINES", beginning)
    monkeypatch.setattr(stream, "BATCH_ROWS", batch)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", batch)
    defaults = fold.AuditFold.__init__.__kwdefaults__ | {"trim_above": trim_above}
    monkeypatch.setattr(fold.AuditFold.__init__, "__kwdefaults__", defaults)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("name", RECORDINGS)
def test_three_intervals_of_a_recording(name: str, tmp_path: Path) -> None:
    logs = [recorded(name)]
    cuts_us = random_cuts(logs, 2, random.Random(name))
    for number, replayed in enumerate(replays(logs, cuts_us, tmp_path, before_end_us=100_000)):
        assert not replayed.differing(), (cuts_us, number)
        assert not replayed.refused, (cuts_us, number)


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("name", SEVERAL_LOADS)
def test_intervals_of_several_loads(name: str, tmp_path: Path) -> None:
    logs = read_recording(find_recordings([str(CASES / name)])[0]).logs
    cuts_us = random_cuts(logs, 2, random.Random(name))
    for number, replayed in enumerate(replays(logs, cuts_us, tmp_path, before_end_us=100_000)):
        assert not replayed.differing(), (cuts_us, number)
        # What a snapshot has forgotten, and a later load sends again, is judged from the beginning.
        repeats = name.startswith("33") and not fold.KEEP_SAVED
        assert not replayed.refused or repeats, (cuts_us, number)


@pytest.mark.usefixtures("windows")
def test_entries_of_several_files_of_which_none_was_sent_are_all_found(tmp_path: Path) -> None:
    logs = read_recording(find_recordings([str(CASES / "36-TRUE-nothing-ever-sent")])[0]).logs
    first_us, _last_us = span_us(logs)
    cuts_us = [
        first_us + 403_000,
        first_us + 4_566_000,
        first_us + 46_936_000,
    ]  # behind the 4th entry, all, 45 s
    unsent = []
    for replayed in replays(logs, cuts_us, tmp_path, before_end_us=100_000, to_last_line=True):
        assert not replayed.differing()
        rows = replayed.from_beginning["anomalies"]
        unsent.append(sum(row["unsent"] for row in rows if row["kind"] == "never_delivered"))
    assert unsent == [0, 0, 30, 30]


def test_a_snapshot_holds_what_can_still_matter_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "KEEP_SAVED", 100)
    monkeypatch.setattr(fold, "SAVED_US", 0)
    monkeypatch.setattr(stream, "BEGINNING_LINES", 50)
    logs = [steady(6_000, tmp_path / "steady")]
    first_us, last_us = span_us(logs)
    days = [first_us + (last_us - first_us) * day // 6 // 1000 * 1000 for day in range(1, 6)]
    sizes = []
    for replayed in replays(logs, days, tmp_path, before_end_us=100_000):
        assert not replayed.differing()
        assert not replayed.refused
        assert replayed.kept is not None
        sizes.append(len(replayed.kept.data))
    assert sizes[4] < 1.15 * sizes[1]


def steady(entries: int, folder: Path) -> DispatcherLog:
    """Return a log of one consumer and 50 keys, an entry a second, each acknowledged a moment later."""
    lines = [(0, added(1)), (0, flow(1, entries))]
    for entry in range(entries):
        lines += [(1_000 * entry + 2, sent(1, entry)), (1_000 * entry + 4, ack(1, entry))]
    messages = [
        message(entry, f"k{entry % 50}", publish_time_ms=T0_US // 1_000 + 1_000 * entry)
        for entry in range(entries)
    ]
    write(folder, "messages", messages)
    write(folder, "events", numbered(lines), subscription_type="Key_Shared")
    return read(folder)


def with_checkpoints(log: DispatcherLog, every: int) -> DispatcherLog:
    """The log with a checkpoint every so many lines, as a recorder writes them: who is connected, what is pending."""
    rows: list[dict[str, Any]] = []
    connected: dict[int, dict[str, Any]] = {}
    for number, row in enumerate(log.events.to_pylist()):
        if number % every == every - 1:
            said = {"consumers": list(connected.values()), "pending_acks": {}, "ack_holes": []}
            line = dict.fromkeys(row) | {name: row[name] for name in ("t_us", *_LOG)}
            rows.append(line | {"kind": "checkpoint", "checkpoint_json": json.dumps(said)})
        rows.append(row)
        if row["kind"] == "consumer_added":
            connected[row["consumer"]] = {"consumer": row["consumer"], "name": row["name"]}
        elif row["kind"] == "consumer_removed":
            del connected[row["consumer"]]
    numbered = [row | {"seq": seq} for seq, row in enumerate(rows, rows[0]["seq"])]
    return replace(log, events=pa.Table.from_pylist(numbered, schema=log.events.schema))


@pytest.mark.slow
@pytest.mark.parametrize("name", [RECORDINGS[0], RECORDINGS[2]])
def test_checkpoints_headers_and_ended_ownership_are_not_gathered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BEGINNING_LINES", 50)
    log = recorded(name)
    logs = [with_checkpoints(log, log.events.num_rows // 40)]
    first_us, last_us = span_us(logs)
    cuts_us = [first_us + (last_us - first_us) * part // 6 // 1000 * 1000 for part in range(1, 6)]
    kinds = []
    for number, replayed in enumerate(replays(logs, cuts_us, tmp_path, before_end_us=100_000)):
        assert not replayed.differing(), number
        assert not replayed.refused, number
        if replayed.kept is not None:
            rare = Counter(decoded(replayed.kept.data).rare["kind"].to_pylist())
            kinds.append((rare["header"], rare["checkpoint"]))
            ended_us = decoded(replayed.kept.data).replay.owned.columns()["until_t_us"]
            end_us = [*cuts_us, last_us][number]
            assert not ((ended_us != OPEN) & (ended_us < end_us - 100_000)).any()
    assert len(kinds) > 2
    assert set(kinds) == {(1, 0)}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The state of a replay in the middle of a recording."""
    monkeypatch.setattr(stream, "BEGINNING_LINES", 50)
    logs = [recorded(RECORDINGS[0])]
    middle_us = logs[0].events["t_us"][logs[0].events.num_rows // 2].as_py() // 1000 * 1000
    state = next(replays(logs, [middle_us], tmp_path, before_end_us=100_000)).kept
    assert state is not None
    return state.data


@pytest.mark.slow
def test_a_state_is_read_in_another_process(kept: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(kept)
    program = (
        "import sys, pathlib\n"
        "from dispatch_core.replay.snapshots import decoded, encoded\n"
        "state = decoded(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(state.cut.last_seq, len(encoded(state)))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "state")], check=True, capture_output=True, text=True
    )
    last_seq, size_bytes = map(int, shown.stdout.split())
    assert last_seq == decoded(kept).cut.last_seq > 0
    assert abs(size_bytes - len(kept)) < len(kept) / 10


def test_a_state_is_written_again_as_it_was_read(kept: bytes) -> None:
    again = decoded(encoded(decoded(kept)))
    assert again.cut.reached == decoded(kept).cut.reached


def _naming(module: str, name: str) -> bytes:
    """A pickle that names something of a module, as protocol 4 does."""
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    return b"\x80\x04" + words + b"\x93."


class Evil:
    """Would run a program when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.check_output, (["true"],)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot be read"),
        (b"no snapshot", "cannot be read"),
        (zstandard.compress(b"no pickle"), "cannot be read"),
        (zstandard.compress(pickle.dumps({"a": 1})), "holds no state"),
        (zstandard.compress(pickle.dumps(Evil())), "names subprocess.check_output, which no state holds"),
        (zstandard.compress(pickle.dumps(getattr)), "names builtins.getattr, which no state holds"),
        (zstandard.compress(pickle.dumps(Path("x"))), "which no state holds"),
        (
            zstandard.compress(_naming("dispatch_core.replay.log_files", "json.loads")),
            "names dispatch_core.replay.log_files.json",
        ),
        (
            zstandard.compress(_naming("dispatch_core.replay.log_files", "json")),
            "names dispatch_core.replay.log_files.json",
        ),
        (
            zstandard.compress(_naming("dispatch_core.recording.writer", "RecordingFiles")),
            "which no state holds",
        ),
        (
            zstandard.compress(_naming("dispatch_core.replay.log_files", "replay_files")),
            "which no state holds",
        ),
    ],
)
def test_bytes_that_hold_no_state_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(SnapshotError, match=why):
        decoded(data)


def test_a_flipped_bit_is_refused_or_changes_nothing(kept: bytes) -> None:
    """A bit can point the compression to another copy of the same bytes: then the state is the same.

    The checksum of the stored bytes, in the table of snapshots, finds these too (``snapshot_files``).
    """
    state = zstandard.decompress(kept)
    refused = 0
    for place in range(0, len(kept), max(1, len(kept) // 200)):
        damaged = bytearray(kept)
        damaged[place] ^= 1 << place % 8
        try:
            decoded(bytes(damaged))
        except SnapshotError:
            refused += 1
        else:
            assert zstandard.decompress(bytes(damaged)) == state, place
    assert refused > 150
