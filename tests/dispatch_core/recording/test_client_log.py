"""Client logs are read as other logs are, and merged into one log of level E."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dispatch_core.audit.client_log import judged
from dispatch_core.recording.client_files import ClientLogs, find_client_logs, read_client_logs
from dispatch_core.recording.client_log import MergedClients, known_at, merged
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.client_lines import T_US, TOPIC, acked, closed, header, nacked, received, write


def _read(folder: Path) -> ClientLogs:
    return read_client_logs(find_client_logs([folder]))


def _merged(folder: Path, *clients: list[dict[str, Any]]) -> MergedClients:
    logs = _read(write(folder, *clients))
    assert logs.counts.quarantined == logs.counts.file_problems == 0
    [made] = merged(logs.sessions, logs.name)
    return made


def _events(clients: MergedClients) -> list[tuple[Any, ...]]:
    """Return kind, connection and first position of each event."""
    found = []
    for row in clients.log.events.to_pylist():
        at = row["positions"][0] if row["positions"] else None
        position = (f"{at['ledger_id']}:{at['entry_id']}",) if at else ()
        found.append((row["kind"], row["consumer"], *position))
    return found


def test_lines_of_clients_become_one_log(tmp_path: Path) -> None:
    clients = _merged(
        tmp_path,
        [header("w1"), received(0, "3:1", key="a"), acked(2, "3:1"), closed(9)],
        [header("w2"), received(1, "3:2", key="b"), nacked(3, "3:2")],
    )
    assert _events(clients) == [
        ("consumer_added", 1),
        ("sent", 1, "3:1"),
        ("consumer_added", 2),
        ("sent", 2, "3:2"),
        ("ack", 1, "3:1"),
        ("redeliver", 2, "3:2"),
        ("consumer_removed", 1),
    ]
    log = clients.log
    assert (log.topic, log.subscription, log.cluster) == (TOPIC, "audit", "standalone")
    assert log.messages["key"].to_pylist() == ["a", "b"]
    assert log.events["seq"].to_pylist() == [1, 2, 3, 4, 5, 6, 7]
    assert [clients.lines[seq].where for seq in (2, 4)] == ["client-1.jsonl:2", "client-2.jsonl:2"]


def test_lines_of_a_client_keep_their_order_when_its_clock_is_set_back(tmp_path: Path) -> None:
    clients = _merged(tmp_path, [header(), received(5, "3:1"), acked(1, "3:1"), received(6, "3:2")])
    assert [kind for kind, *_ in _events(clients)] == ["consumer_added", "sent", "ack", "sent"]
    assert clients.sessions[0].stepped


def test_a_batch_is_one_entry(tmp_path: Path) -> None:
    def of(line: dict[str, Any], index: int) -> dict[str, Any]:
        return line | {"batch_index": index, "batch_size": 3}

    lines = [
        of(received(0, "3:1"), 0),
        of(received(0, "3:1"), 1),
        of(acked(1, "3:1"), 0),
        of(acked(1, "3:1"), 1),
    ]
    rest = [of(received(2, "3:1"), 2), of(acked(2, "3:1"), 2), of(received(3, "3:1"), 0)]
    clients = _merged(tmp_path, [header(), *lines, *rest])
    # The third message is of the same delivery; the first one comes again after the whole entry was acknowledged.
    assert _events(clients)[1:] == [("sent", 1, "3:1"), ("ack", 1, "3:1"), ("sent", 1, "3:1")]
    assert clients.log.messages["num_messages"].to_pylist() == [3]


def test_a_lost_connection_is_a_new_one(tmp_path: Path) -> None:
    lost = {"disconnected_us": T_US + 5_000_000}
    clients = _merged(
        tmp_path,
        [
            header("w1"),
            received(0, "3:1", disconnected_us=0),
            received(20, "3:1", **lost),
            acked(21, "3:1", **lost),
        ],
        [header("w2"), received(6, "3:2")],
    )
    # The connection was lost before w2 got anything, though w1 shows it only later.
    assert _events(clients)[1:] == [
        ("sent", 1, "3:1"),
        ("consumer_removed", 1),
        ("consumer_added", 2),
        ("consumer_added", 3),
        ("sent", 3, "3:2"),
        ("sent", 2, "3:1"),
        ("ack", 2, "3:1"),
    ]


def test_a_failed_acknowledgement_is_none(tmp_path: Path) -> None:
    clients = _merged(tmp_path, [header(), received(0, "3:1"), acked(1, "3:1", error="AlreadyClosed")])
    assert [kind for kind, *_ in _events(clients)] == ["consumer_added", "sent"]


def test_a_second_header_ends_the_consumer_before(tmp_path: Path) -> None:
    clients = _merged(tmp_path, [header(), received(0, "3:1"), header(), received(7, "3:1")])
    assert [kind for kind, *_ in _events(clients)] == [
        "consumer_added",
        "sent",
        "consumer_removed",
        "consumer_added",
        "sent",
    ]


def test_lost_lines_are_gaps(tmp_path: Path) -> None:
    numbered = [received(0, "3:1") | {"seq": 1}, received(1, "3:2") | {"seq": 5}]
    clients = _merged(tmp_path, [header(), *numbered])
    gap = clients.log.events.filter(clients.log.events["seq"].to_numpy() == 3).to_pylist()[0]
    assert (gap["kind"], gap["gap_from_seq"], gap["gap_to_seq"], gap["gap_lines"]) == ("gap", 3, 5, 3)
    assert clients.log.events["seq"].to_pylist() == [1, 2, 3, 6]


def test_topics_and_subscriptions_are_kept_apart(tmp_path: Path) -> None:
    lines = [received(0, "3:1"), received(1, "4:1", topic=f"{TOPIC}-2"), received(2, "3:2", subscription="b")]
    logs = _read(write(tmp_path, [header(), *lines]))
    made = merged(logs.sessions, logs.name)
    assert [(c.log.topic, c.log.subscription) for c in made] == [
        (TOPIC, "audit"),
        (TOPIC, "b"),
        (f"{TOPIC}-2", "audit"),
    ]


def test_a_moment_before_the_end(tmp_path: Path) -> None:
    clients = _merged(tmp_path, [header(), received(0, "3:1"), acked(5, "3:1")])
    known = known_at(clients, T_US + 2_000_000)
    assert (len(known.lines), known.sessions[0].last_us) == (2, T_US + 2_000_000)


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "not a JSON object"),
        (b"\xff", None, "not UTF-8"),
        (b'{"kind":"client_received","t_us":"1","position":"3:1"}', "t_us", "expected an integer"),
        (b'{"kind":"client_received","position":"3:1"}', "t_us", "missing"),
        (b'{"t_us":1,"position":"3:1"}', "kind", "missing"),
        (b'{"kind":"client_received","t_us":1}', "position", "missing in a line of kind client_received"),
        (b'{"kind":"client_acked","t_us":1,"position":"3"}', "position", "expected a position"),
        (b'{"kind":"client_acked","t_us":1,"position":"3:-1"}', "position", "no negative"),
        (b'{"kind":"client_acked","t_us":1,"position":"3:1","ack_type":"Both"}', "ack_type", "is none of"),
        (b'{"kind":"client_received","t_us":1,"position":"3:1","batch_index":-1}', "batch_index", "below"),
        (
            b'{"kind":"client_received","t_us":1,"position":"3:1","batch_index":3,"batch_size":3}',
            "batch_index",
            "not below batch_size",
        ),
        (
            b'{"kind":"client_received","t_us":1,"position":"3:1","key":"?","key_b64":true}',
            "key",
            "not base64",
        ),
        (b'{"kind":"client_received","t_us":1,"position":"3:1","consumer":7}', "consumer", "expected a text"),
    ],
)
def test_bad_lines_are_quarantined_and_count_as_lost(
    tmp_path: Path, line: bytes, field: str | None, reason: str
) -> None:
    path = write(tmp_path, [header(), received(0, "3:1"), received(1, "3:2")]) / "client-1.jsonl"
    head, first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([head, first, line, second]) + b"\n")
    logs = _read(tmp_path)
    [refused] = logs.quarantine.to_pylist()
    assert (refused["source_file"], refused["source_line"], refused["field"]) == ("client-1.jsonl", 3, field)
    assert reason in refused["reason"]
    assert refused["raw"] == line
    assert [kept.lost for kept in logs.sessions[0].lines] == [0, 1]
    assert (logs.counts.lines, logs.counts.accepted, logs.counts.about_file) == (4, 2, 1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"format": "pulsar-consumer-events"}, "in a file named as a log of clients"),
        ({"format_version": "2.0"}, "format version 2.0 cannot be read"),
        ({"host": 7}, "expected a text"),
        ({"records": "all"}, "expected a list"),
    ],
)
def test_bad_headers_are_quarantined(tmp_path: Path, values: dict[str, Any], reason: str) -> None:
    logs = _read(write(tmp_path, [header(**values)]))
    assert reason in logs.quarantine["reason"][0].as_py()


def test_lines_need_a_topic_and_a_subscription(tmp_path: Path) -> None:
    logs = _read(write(tmp_path, [header(topic=None), received(0, "3:1"), received(0, "3:1", topic=TOPIC)]))
    assert logs.quarantine["field"].to_pylist() == ["topic"]
    assert len(logs.sessions[0].lines) == 1


def test_unknown_kinds_and_fields_are_passed_over(tmp_path: Path) -> None:
    unknown = {"kind": "client_paused", "t_us": T_US, "why": [1]}
    logs = _read(write(tmp_path, [header(), unknown, received(0, "3:1", colour="red")]))
    assert logs.counts.unknown_kinds == {"client_paused": 1}
    assert [line.kind for line in logs.sessions[0].lines] == ["client_received"]
    assert logs.counts.quarantined == 0


def test_a_truncated_file_is_kept_up_to_the_cut(tmp_path: Path) -> None:
    path = write(tmp_path, [header(), *(received(n, f"3:{n}") for n in range(200))]) / "client-1.jsonl"
    whole = gzip.compress(path.read_bytes(), mtime=0)
    (tmp_path / "client-1.jsonl.gz").write_bytes(whole[: len(whole) - 200])
    path.unlink()
    logs = _read(tmp_path)
    assert "truncated" in logs.quarantine["reason"][-1].as_py()
    assert logs.counts.file_problems == 1
    assert 0 < logs.counts.accepted < 200


@pytest.mark.slow
def test_nothing_in_a_file_raises(tmp_path: Path) -> None:
    random = Random(27)
    lost = {"disconnected_us": T_US + 3_000_000, "connected": False}
    lines = [
        received(n, f"3:{n}", batch_index=n % 3, seq=n + 1, **(lost if n == 5 else {})) for n in range(9)
    ]
    lines += [acked(9 + n, f"3:{n}", ack_type="Cumulative", error=None) for n in range(4)]
    path = write(tmp_path, [header(), *lines, nacked(20, "3:8"), closed(21)]) / "client-1.jsonl"
    whole = path.read_bytes()
    parts = [
        b'"',
        b"}",
        b"{",
        b"\n",
        b"null",
        b"-1",
        b"\xff",
        b"1e400",
        b"[" * 40,
        b'"t_us":0,',
        b'"position":"0:0",',
    ]
    for _ in range(150):
        text = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            at = random.randrange(len(text))
            text[at : at + random.randrange(20)] = random.choice([b"", text[:at][-30:], *parts])
        path.write_bytes(bytes(text[: random.randrange(len(text) // 2, len(text))]))
        logs = _read(tmp_path)
        counts = logs.counts
        assert counts.lines == counts.about_file + counts.accepted + counts.quarantined
        for clients in merged(logs.sessions, logs.name):
            seqs = clients.log.events["seq"].to_pylist()
            assert seqs == sorted(set(seqs))
            assert set(clients.lines) == set(seqs)
            judged(audit_whole(clients.log, rules=False).anomalies, clients)
