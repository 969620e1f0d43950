"""Headers, many dispatchers in one file, incarnations, gaps, checkpoints and footers."""

import json
import zlib

import pytest

from dispatch_core.recording import rows
from dispatch_core.recording.log import dispatcher_logs
from tests.dispatch_core.recording.reading import HEADER, TOPIC, flow, line_of, message, read

GENERAL = {"format": "pulsar-consumer-events", "format_version": 1, "cluster": "east", "broker": "b1"}


def identities(result):
    rows = result.events.to_pylist()
    names = ("cluster", "topic", "subscription", "broker", "incarnation", "kind")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize("version", [1, "1", "1.0", "1.7"])
def test_versions_that_are_read(version):
    assert len(read([HEADER | {"format_version": version}, flow(1)]).events) == 2


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"format_version": 2}, "format_version", "format version 2 cannot be read by this release, which reads 1.x: "
         "upgrade pulsar-dispatch-audit, or record in format 1; the rest of the file was not read"),
        ({"format_version": "2.0"}, "format_version", "upgrade pulsar-dispatch-audit"),
        ({"format_version": 0}, "format_version", "which reads 1.x: record in format 1"),
        ({"format_version": None}, "format_version", 'expected a version such as 1 or "1.0", found null'),
        ({"format_version": True}, "format_version", "found true"),
        ({"format": "kafka-log"}, "format", "'kafka-log' is none of pulsar-dispatch-trace, pulsar-consumer-events"),
        ({"format": "pulsar-message-log"}, "format", "'pulsar-message-log' in a file named as a log of events"),
    ],
)  # fmt: skip
def test_headers_that_stop_the_reading(change, field, reason):
    result = read([HEADER, flow(1), HEADER | change, flow(2), b"rubbish"])
    ((line, found, said),) = result.refused
    assert (line, found) == (3, field)
    assert reason in said
    assert result.events["seq"].to_pylist() == [0, 1]
    assert result.counts.lines == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [({"subscription": 5}, "subscription"), ({"incarnation": -1}, "incarnation"), ({"config": 1}, "config")],
)
def test_a_header_that_cannot_be_used_is_refused_by_itself(change, field):
    result = read([HEADER | change, flow(1), flow(2, topic=TOPIC, subscription="s")])
    assert result.refused[0][1] == field
    assert result.events["seq"].to_pylist()[-1] == 2


def test_a_file_without_header_names_the_dispatcher_in_each_line():
    result = read([flow(1, topic="t", subscription="s"), flow(2), flow(3, topic="t")])
    assert identities(result) == [("standalone", "t", "s", None, 0, "flow")]
    assert result.refused == [
        (2, "topic", "the line names no topic, and no header before it does"),
        (3, "subscription", "the line names no subscription, and no header before it does"),
    ]


def test_defaults_for_all_and_headers_of_single_dispatchers():
    config = {"config": {"a": 1, "b": 1}}
    result = read(
        [
            GENERAL | config,
            {"format": "pulsar-consumer-events", "format_version": 1, "topic": "t1", "subscription": "s",
             "incarnation": 3, "config": {"b": 2}},
            flow(1, topic="t2", subscription="s"),
            flow(1, topic="t1", subscription="s"),
            flow(2, topic="t2", subscription="s"),
            flow(1, topic="t2", subscription="s2", broker="b9", incarnation=8, cluster="west"),
            flow(2),
        ]
    )  # fmt: skip
    assert result.refused == []
    assert sorted(set(map(str, identities(result)))) == sorted(
        map(
            str,
            {
                ("east", "t1", "s", "b1", 3, "header"),
                ("east", "t1", "s", "b1", 3, "flow"),
                ("east", "t2", "s", "b1", 0, "header"),
                ("east", "t2", "s", "b1", 0, "flow"),
                ("west", "t2", "s2", "b9", 8, "header"),
                ("west", "t2", "s2", "b9", 8, "flow"),
            },
        )
    )
    logs = dispatcher_logs(result.messages, result.events)
    assert [(log.topic, log.header["config"], len(log.events)) for log in logs] == [
        ("t1", {"a": 1, "b": 2}, 2),  # the line without a topic belongs to the last header that named one
        ("t2", {"a": 1, "b": 1}, 2),
        ("t2", {"a": 1, "b": 1}, 1),
    ]


def test_logs_one_after_the_other_in_one_file():
    other = HEADER | {"topic": "u", "broker": "b2"}
    result = read([HEADER, flow(1), other, flow(1), flow(2)])
    logs = dispatcher_logs(result.messages, result.events)
    assert [(log.topic, log.broker, len(log.events), log.header) for log in logs] == [
        (TOPIC, None, 1, HEADER),
        ("u", "b2", 2, other),
    ]


def test_incarnations_are_logs_of_their_own_in_order_of_time():
    first, second = HEADER | {"broker": "z", "incarnation": 9}, HEADER | {"broker": "a", "incarnation": 2}
    result = read(
        [second, flow(1, t_us=2000), flow(2, t_us=2001), first, flow(2, t_us=1001), flow(1, t_us=1000)]
    )
    messages = read([message(1), message(0), message(7, topic="another")], "messages.jsonl").messages
    logs = dispatcher_logs(messages, result.events, "a/b")
    assert [(log.broker, log.incarnation, log.start_t_us) for log in logs] == [("z", 9, 1000), ("a", 2, 2000)]
    assert [log.events["seq"].to_pylist() for log in logs] == [[1, 2], [1, 2]]
    assert [log.messages["entry_id"].to_pylist() for log in logs] == [[0, 1], [0, 1]]
    assert {log.recording for log in logs} == {"a/b"}


def test_rows_with_one_seq_stay_in_the_order_read():
    result = read([HEADER, flow(2, permits=1), flow(1), flow(2, permits=2), flow(2, permits=3)])
    (log,) = dispatcher_logs(result.messages, result.events)
    assert log.events["permits"].to_pylist() == [10, 1, 2, 3]


def test_a_header_alone_is_a_log_without_events():
    result = read([HEADER])
    (log,) = dispatcher_logs(result.messages, result.events)
    assert (log.header, len(log.events), log.start_t_us) == (HEADER, 0, None)
    assert dispatcher_logs(result.messages, result.events.slice(0, 0)) == []


def test_the_header_stays_as_it_was():
    text = json.dumps(HEADER | {"more": [1, {"é": None}]}, ensure_ascii=False, indent=None)
    result = read(text.encode() + b"\n")
    assert result.events["header_json"].to_pylist() == [text]


def test_a_message_log_with_a_header():
    header = {"format": "pulsar-message-log", "format_version": "1.0", "topic": "t", "cluster": "east"}
    result = read([header, message(0, topic=None), message(1, topic="u")], "messages.jsonl")
    assert result.messages.select(["cluster", "topic"]).to_pylist() == [
        {"cluster": "east", "topic": "t"},
        {"cluster": "standalone", "topic": "u"},
    ]
    assert result.counts.about_file == 1


def test_gap_and_checkpoint():
    checkpoint = {
        "seq": 9,
        "t_us": 9,
        "kind": "checkpoint",
        "consumers": [2, 1],
        "mark_delete": "3:4",
        "x": {"y": []},
    }
    result = read(
        [
            HEADER,
            {"t_us": 5, "kind": "gap", "from": 5, "to": 8},
            {"t_us": 5, "seq": 6, "kind": "gap", "from": 1, "to": 8, "lost": 3},
            checkpoint,
        ]
    )
    assert result.refused == []
    rows = result.events.slice(1).to_pylist()
    names = ("seq", "gap_from_seq", "gap_to_seq", "gap_lines")
    assert [tuple(row[name] for name in names) for row in rows[:2]] == [(5, 5, 8, 4), (6, 1, 8, 3)]
    assert json.loads(rows[2]["checkpoint_json"]) == checkpoint
    assert rows[2]["mark_delete"] == {"ledger_id": 3, "entry_id": 4}


def footed(log, **footer):
    body = b"".join(line_of(line) + b"\n" for line in log)
    true = {"kind": "footer", "lines": len(log), "crc32": f"{zlib.crc32(body):08x}"}
    return body + line_of(true | footer) + b"\n"


def test_true_footers():
    body = footed([HEADER, flow(1), flow(2)])
    for data, about in ((body, 2), (body + body, 4), (body.replace(b"\n", b"\r\n"), None)):
        result = read(data)
        if about is None:  # other line ends are other bytes
            assert result.refused[0][1] == "crc32"
        else:
            assert (result.refused, result.counts.about_file) == ([], about)
    result = read(footed([HEADER, flow(1)], seq=2, t_us=5))
    assert json.loads(result.events["footer_json"].to_pylist()[-1])["lines"] == 2
    assert read(footed([message(0)]), "messages.jsonl").counts.about_file == 1


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (footed([HEADER, flow(1)], lines=7), "lines",
         "the footer says 7 lines, 2 were read: lines were lost, added or doubled"),
        (footed([HEADER, flow(1)]).replace(b"10", b"11"), "crc32", "they were changed"),
        (footed([HEADER, flow(1)], lines="2"), "lines", "the footer says '2' lines"),
        (footed([HEADER, flow(1)], crc32="", seq=1, t_us=1), "crc32", "the footer says ''"),
        (footed([HEADER, flow(1)], lost=3), "lost", "the recorder lost 3 lines"),
    ],
)  # fmt: skip
def test_a_false_footer_is_quarantined_and_the_lines_before_it_kept(data, field, reason):
    result = read(data)
    ((line, found, said),) = result.refused
    assert (line, found) == (3, field)
    assert reason in said
    assert result.events["seq"].to_pylist() == [0, 1]


def test_an_unfinished_footer_count_over_blocks():
    from dispatch_core.recording.reader import Limits

    assert read(footed([HEADER, flow(1)], lost=0)).refused == []
    data = footed([HEADER, *(flow(seq) for seq in range(1, 200))])
    for block in (50, 1000, 5000):
        assert read(data, limits=Limits(block_bytes=block)).refused == []
    lost = data.replace(line_of(flow(77)) + b"\n", b"")
    assert read(lost).refused[0][2].startswith("the footer says 200 lines, 199 were read")


def test_the_values_of_a_block_are_converted_once_for_all_loads(monkeypatch):
    converted = []
    from_json = rows.from_json

    def counted(table, faults):
        converted.append(len(table))
        return from_json(table, faults)

    monkeypatch.setattr(rows, "from_json", counted)
    loads = [[HEADER | {"incarnation": load}, flow(1), flow(2)] for load in range(1, 6)]
    loads[2][1] = flow(1, permits=0)
    result = read([line for load in loads for line in load])
    assert converted == [15]
    assert result.refused == [(8, "permits", "0 is below 1")]
    seqs = [(row["incarnation"], row["seq"]) for row in result.events.to_pylist() if row["kind"] == "flow"]
    assert seqs == [(load, seq) for load in range(1, 6) for seq in (1, 2) if (load, seq) != (3, 1)]
