"""Warnings about fields of message lines that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.batch_sizes import batch_sizes, unread_sizes
from dispatch_core.recording.reader import find_recordings, read_recording
from tests.dispatch_core.audit.batches import in_batches, same
from tests.dispatch_core.audit.small_logs import (
    ack,
    added,
    audited,
    flow,
    message,
    numbered,
    of_kind,
    read,
    sent,
    write,
)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_messages", 0, "each entry counts as one message, so permits"),
        ("size_bytes", "large", "the entries count, without it"),
    ],
)
def test_a_warning_says_how_the_entry_counts(field: str, value: object, says: str, tmp_path: Path) -> None:
    stored = [message(0, "k"), message(1, "k", **{field: value})]
    (source,) = find_recordings([str(write(tmp_path / "a", stored, numbered([added(1)])))])
    recording = read_recording(source)
    assert recording.quarantine.num_rows == 0, json.dumps(recording.quarantine.to_pylist(), default=str)
    (warning,) = recording.mismatches
    assert warning.startswith(f"{field} cannot be read in 1 message line")
    assert says in warning


def test_input_quality_names_entries_of_an_unknown_number_of_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = [message(0, "k"), message(1, "k", num_messages="many"), message(2, "k"), message(3, "k")]
    lines = [
        added(1),
        flow(1, 100),
        sent(1, 0),
        ack(1, 0),
        sent(1, 1, 2),
        ack(1, 1, 2),
        sent(1, 3),
        ack(1, 3),
    ]
    folder = write(tmp_path / "a", stored, numbered(lines))
    log = read(folder)
    assert unread_sizes(log.messages).tolist() == [False, True, False, False]
    assert batch_sizes(log.messages).tolist() == [1, 1, 1, 1]
    whole = audited(log)
    assert [(row["seqs"], row["positions"]) for row in of_kind(whole, "unknown_batch_size")] == [
        ([5], ["5:1"])
    ]
    assert whole.deliveries["num_messages"].to_pylist() == [1, 1, 1, 1]
    for cut in range(1, len(lines)):
        same(in_batches(log, [cut]), whole)
    main(["audit", "--json", str(folder)])
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    (quality,) = [promise for promise in verdict["promises"] if promise["promise"] == "input_quality"]
    assert (quality["verdict"], quality["reason"]) == (
        "PASS",
        "every row of its files was accepted; tolerated: 1 unknown_batch_size",
    )
