"""A log cut in the middle, with statistics of the broker from the cut: the whole log has all certain findings, too."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dispatch_core.cli.main import main
from dispatch_core.importers.topic_stats.checkpoint import Made, from_snapshot
from dispatch_core.importers.topic_stats.documents import Document, TopicStatsError, snapshot_of
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.recording.rewrite import without_trace
from dispatch_core.replay.statistics import stats_at
from dispatch_core.times import micros
from tests.dispatch_core.audit.small_logs import audited
from tests.dispatch_core.audit.test_checkpoint_state import OF_ORDER, OF_STATE, Truth, text
from tests.dispatch_core.importers.test_topic_stats_documents import SAMPLES, documents

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
CERTAIN = (*OF_STATE, *OF_ORDER)
#: Lines of the log before the snapshot.
OVERLAP = 800


class Cut:
    """A recording, and the broker's statistics as of one of its lines of level E."""

    def __init__(self, folder: Path, share: float) -> None:
        (source,) = find_recordings([folder])
        (self.trace,) = read_recording(source).logs
        events, source_seq = without_trace(self.trace.events)
        self.whole = replace(self.trace, events=events)
        times = events["t_us"].to_numpy()
        # a moment between two lines, so that the first of them may stand before the snapshot
        calm = np.flatnonzero(np.diff(times) >= 3) + 1
        for at in calm[np.searchsorted(calm, int(share * len(events))) :].tolist():
            self.at = at
            self.taken_us = int(times[at - 1]) + 1, int(times[at - 1]) + 2
            if self._took(events, int(source_seq[at - 1])):
                break

    def _took(self, events: pa.Table, last: int) -> bool:
        """Take the state at a line; return False within a change of membership, which statistics show as complete."""
        self.truth = Truth(self.trace.header.get("subscription_type") in ("Failover", "Exclusive"))
        lines = events.slice(0, self.at).to_pylist()
        for line in lines:
            self.truth.take(line)
        self.names = {line["consumer"]: line["name"] for line in lines if line["kind"] == "consumer_added"}
        self.last_seq = lines[-1]["seq"]
        named = [position for row in events["positions"].to_pylist() for position in row or ()]
        stored = list(self._stored())
        self.state = self.truth.line(
            stored, min((position["ledger_id"], position["entry_id"]) for position in named)
        )
        self.last_stored = text(stored[-1])
        self.stats = stats_at(self.trace, last)
        self.cursor = self._cursor(last)
        return {consumer["consumer"] for consumer in self.stats["consumers"]} == set(self.truth.connected)

    def _stored(self) -> Any:
        messages = self.trace.messages
        return zip(messages["ledger_id"].to_pylist(), messages["entry_id"].to_pylist(), strict=True)

    def _cursor(self, last: int) -> dict[str, Any]:
        """Return the cursor's statistics after the line ``last`` of the trace: read position, pending read."""
        reads, position = False, ""
        names = ["seq", "kind", "type", "read_position", "cancelled"]
        for line in self.trace.events.select(names).to_pylist():
            if line["seq"] > last:
                break
            if line["kind"] == "read_issued":
                reads = True
            elif line["cancelled"] or (line["type"] == "Normal" and line["kind"] == "read_done"):
                reads = False
            if line["kind"] in ("read_issued", "read_done", "rewind") and line["read_position"]:
                at = line["read_position"]
                position = f"{at['ledger_id']}:{at['entry_id']}"
        return {"readPosition": position, "waitingReadOp": reads, "subscriptionHavePendingRead": reads}

    def documents(self) -> list[Document]:
        holes = ",".join(
            f"({p.split(':')[0]}:{int(p.split(':')[1]) - 1}..{p}]" for p in self.state["ack_holes"]
        )
        cursor = self.cursor | {
            "markDeletePosition": self.state["mark_delete"],
            "individuallyDeletedMessages": f"[{holes}]",
        }
        internal = {"lastConfirmedEntry": self.last_stored, "cursors": {self.trace.subscription: cursor}}
        given = {"subscriptions": {self.trace.subscription: self.stats}}
        pair = (("stats.json", given), ("stats-internal.json", internal))
        return [Document.of(name, json.dumps(document).encode()) for name, document in pair]

    def rest(self, overlap: int = 1) -> DispatcherLog:
        """Return the log from the last lines before the snapshot on."""
        return replace(self.whole, events=self.whole.events.slice(max(self.at - overlap, 0)))

    def made(self, given: dict[int, str] | None = None, overlap: int = 1) -> Made:
        snapshot = snapshot_of(self.documents(), self.trace.subscription)
        rest = self.rest(overlap)
        if given is None:
            early = rest.events.slice(0, overlap).to_pylist()
            joined = {line["consumer"] for line in early if line["kind"] == "consumer_added"}
            given = {n: self.names[n] for n in self.truth.connected if n not in joined}
        return from_snapshot(rest, snapshot, self.taken_us, given)


def found(log: DispatcherLog, after: int, *, certain: bool) -> Counter[Any]:
    return Counter(
        (row["kind"], row["key"], row["positions"][0], row["seqs"][-1])
        for row in audited(log).anomalies.to_pylist()
        if row["kind"] in CERTAIN and row["seqs"][-1] > after and not (certain and row["uncertain"])
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDINGS.iterdir()))
@pytest.mark.parametrize("share", [0.15, 0.3, 0.45, 0.6, 0.8])
def test_nothing_is_certain_that_the_whole_log_has_not_and_what_is_pending_is_so(
    name: str, share: float
) -> None:
    cut = Cut(RECORDINGS / name, share)
    made = cut.made(overlap=OVERLAP)
    line = json.loads(made.log.events["checkpoint_json"][0].as_py())
    assert not made.notes
    assert made.known_pending == sum(map(len, line["pending_acks"].values()))
    assert sorted(consumer["consumer"] for consumer in line["consumers"]) == sorted(cut.truth.connected)
    assert (line["mark_delete"], line["ack_holes"]) == (cut.state["mark_delete"], cut.state["ack_holes"])
    for number, positions in line["pending_acks"].items():
        assert set(positions) <= set(cut.state["pending_acks"][number]), number
    certain = found(made.log, cut.last_seq, certain=True)
    assert not certain - found(cut.whole, cut.last_seq, certain=True)
    assert not audited(made.log).anomalies.filter(pa.compute.field("kind") == "unknown_consumer").num_rows


@pytest.mark.parametrize(
    ("name", "share", "kinds"),
    [
        ("designed-failover-modulo-p1", 0.14, {"split_key", "double_outstanding"}),
        ("designed-rolling-restart-classic-ch", 0.11, {"split_key"}),
    ],
)
def test_a_snapshot_proves_what_the_log_behind_it_does_not(name: str, share: float, kinds: set[str]) -> None:
    cut = Cut(RECORDINGS / name, share)
    bare = replace(cut.whole, events=cut.whole.events.slice(cut.at))
    with_snapshot = found(cut.made(overlap=OVERLAP).log, cut.last_seq, certain=True)
    assert not with_snapshot - found(cut.whole, cut.last_seq, certain=True)
    proven = with_snapshot - found(bare, cut.last_seq, certain=True)
    assert {kind for kind, *_ in proven} == kinds


@pytest.mark.slow
def test_who_is_who_follows_from_what_is_sent_or_is_asked_for() -> None:
    known_pending, refusals = 0, []
    for share in np.linspace(0.1, 0.9, 17).tolist():
        cut = Cut(RECORDINGS / "designed-rolling-restart-ch", share)
        try:
            made = cut.made({})
        except TopicStatsError as error:
            refusals.append(str(error))
            continue
        known_pending += 1
        line = json.loads(made.log.events["checkpoint_json"][0].as_py())
        named = {consumer["consumer"]: consumer["name"] for consumer in line["consumers"]}
        of_log = set(cut.rest().events["consumer"].to_pylist())
        assert {n: name for n, name in named.items() if n in of_log} == {
            n: cut.names[n] for n in cut.truth.connected if n in of_log
        }
    assert known_pending >= 3
    assert all("--connection" in refusal for refusal in refusals)


# --- the command, on what a real broker printed ------------------------------------------------------------------


def imported(tmp_path: Path, sample: str, *more: str, stats: tuple[str, ...] | None = None) -> int:
    folder = SAMPLES / sample
    files = stats or (str(folder / "stats.json"), str(folder / "stats-internal.json"))
    taken = (folder / "taken").read_text().split()
    arguments = [str(folder), "--stats", *files, "--taken", *taken, "--out", str(tmp_path), *more]
    return main(["import-stats", *arguments])


@pytest.mark.parametrize("sample", ["4.2.4-key-shared", "4.2.4-failover"])
def test_a_real_brokers_documents_say_what_its_recorder_saw(
    sample: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(tmp_path, sample) == 0
    assert "lines after a checkpoint of" in capsys.readouterr().out
    (whole,) = read_recording(find_recordings([SAMPLES / sample])[0]).logs
    (part,) = read_recording(find_recordings([tmp_path])[0]).logs
    line = json.loads(part.events["checkpoint_json"][0].as_py())
    truth = Truth(sample.endswith("failover"))
    lost = whole.events.num_rows - part.events.num_rows + 1
    for row in whole.events.slice(0, lost).to_pylist():
        truth.take(row)
    assert part.events["seq"][0].as_py() == lost  # in the place of the last line before
    assert [consumer["consumer"] for consumer in line["consumers"]] == truth.connected
    assert set(line["ack_holes"]) == {text(position) for position in truth.acked}
    assert line["pending_acks"]
    pending = {
        str(number): {text(position) for position in its} for number, its in truth.pending.items() if its
    }
    assert {n: set(its) for n, its in line["pending_acks"].items()} == pending
    assert main(["audit", str(tmp_path), "--json"]) in (0, 1, 2)
    rows = [json.loads(text_) for text_ in capsys.readouterr().out.splitlines()]
    assert not [row for row in rows if row.get("kind") in (*CERTAIN, "log_gap", "unknown_consumer")]


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("sample", ["4.2.4-key-shared", "4.2.4-failover"])
def test_a_log_from_the_snapshot_on_is_judged_as_the_whole_log_is(
    sample: str, complete: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries that were acknowledged before are no loss, and no line is missing."""
    assert imported(tmp_path, sample) == 0
    options = ["--complete"] if complete else []
    verdicts = []
    for path in (SAMPLES / sample, tmp_path):
        capsys.readouterr()
        main(["audit", str(path), "--json", *options])
        *found, verdict = map(json.loads, capsys.readouterr().out.splitlines())
        holes = [row for row in found if row["kind"] == "ack_hole"]
        verdicts.append((verdict, holes))
    (whole, of_whole), (part, of_part) = verdicts
    assert {tuple(hole["positions"]) for hole in of_part} == {tuple(hole["positions"]) for hole in of_whole}
    if not of_whole:
        assert (whole["verdict"], part["verdict"]) == ("PASS", "PASS")
        return
    # their acknowledgements may have been on their way when the snapshot was taken
    assert {(hole["uncertain"], hole["reason"]) for hole in of_part} == {(True, "before_checkpoint")}
    assert (whole["verdict"], part["verdict"]) == ("FAIL", "UNKNOWN")
    (reason,) = {promise["reason"] for promise in part["promises"] if promise["verdict"] == "UNKNOWN"}
    assert "missing" not in reason


@pytest.mark.parametrize(
    ("sample", "subscription", "known"),
    [("4.2.4-key-shared", "audit/1", 35), ("4.2.4-failover", "audit", 10)],
)
def test_counts_and_owners_prove_what_was_sent_before_the_log_begins(
    sample: str, subscription: str, known: int
) -> None:
    (whole,) = read_recording(find_recordings([SAMPLES / sample])[0]).logs
    taken = [
        micros(datetime.fromisoformat(time)) for time in (SAMPLES / sample / "taken").read_text().split()
    ]
    at = int(np.searchsorted(whole.events["t_us"].to_numpy(), taken[0]))
    truth = Truth(sample.endswith("failover"))
    for row in whole.events.slice(0, at).to_pylist():
        truth.take(row)
    log = replace(whole, events=whole.events.slice(at - 1))  # nothing happened for a second
    names = {number: f"c{number}" for number in truth.connected}
    made = from_snapshot(log, snapshot_of(documents(sample), subscription), (taken[0], taken[1]), names)
    line = json.loads(made.log.events["checkpoint_json"][0].as_py())
    for number, positions in line["pending_acks"].items():
        assert set(positions) <= {text(position) for position in truth.pending[int(number)]}
    # all but the ten entries of two draining hashes, which have later entries waiting
    assert made.known_pending == known
    assert sum(map(len, truth.pending.values())) == known + (10 if sample.endswith("key-shared") else 0)


def test_a_log_that_begins_behind_the_snapshot_tells_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = SAMPLES / "4.2.4-key-shared"
    late = tmp_path / "in" / "late"
    late.mkdir(parents=True)
    shutil.copyfile(folder / "messages.jsonl", late / "messages.jsonl")
    lines = (folder / "events.jsonl").read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if json.loads(line).get("seq", 0) == 118)
    # its own numbers begin anew, and no consumer is added before the log begins
    rest = [json.loads(line) for line in lines[first:]]
    rest = [line | {"seq": line["seq"] - 117} for line in rest]
    head = [json.loads(line) for line in lines if "seq" not in json.loads(line)]
    (late / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in head + rest))
    given = [f"--connection={number}=c{number}" for number in (1, 2, 3)]
    taken = (folder / "taken").read_text().split()
    arguments = [
        "--stats",
        str(folder / "stats.json"),
        str(folder / "stats-internal.json"),
        "--taken",
        *taken,
    ]
    assert main(["import-stats", str(late), *arguments, "--out", str(tmp_path / "out"), *given]) == 0
    assert "the time in between is unknown" in capsys.readouterr().err
    (part,) = read_recording(find_recordings([tmp_path / "out"])[0]).logs
    line = json.loads(part.events["checkpoint_json"][0].as_py())
    assert (line["pending_acks"], line.get("read_position")) == ({}, None)
    assert all("permits" not in consumer for consumer in line["consumers"])
    assert part.events["seq"].to_pylist()[:3] == [
        2,
        3,
        4,
    ]  # seq 1 and no consumer would mean a new dispatcher


@pytest.mark.parametrize(
    ("more", "stats", "said"),
    [
        (("--subscription", "billing"), None, "no events of a subscription that was asked for"),
        (("--connection", "c1"), None, "expected NUMBER=NAME"),
        (("--connection", "1=other"), None, "connection 1 (other) is connected"),
        (("--broker-version", "two"), None, "two"),
        ((), ("nowhere.json",), "nowhere.json: cannot be read"),
        ((), (str(SAMPLES / "3.0" / "stats.json"),), "that the stats name (audit)"),
    ],
)
def test_what_does_not_fit_is_refused(
    more: tuple[str, ...],
    stats: tuple[str, ...] | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert imported(tmp_path / "out", "4.2.4-key-shared", *more, stats=stats) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (("2026-11-22T18:29:41.9Z", "2026-11-22T18:29:41Z"), "the second time is the earlier one"),
        (("2026-11-22T18:29:39Z", "2026-11-22T18:29:40Z"), "after 18:29:40.000, when they were taken"),
        (("2026-11-22T19:29:39Z", "2026-11-22T19:29:40Z"), "the log has no line after the snapshot"),
        (("2026-11-22T18:29:40Z", "2026-11-22T18:29:41Z"), "a consumer joined or left at seq"),
    ],
)
def test_times_that_cannot_be_are_refused(
    taken: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = SAMPLES / "4.2.4-key-shared"
    files = [str(folder / "stats.json"), str(folder / "stats-internal.json")]
    arguments = [str(folder), "--stats", *files, "--taken", *taken, "--out", str(tmp_path / "out")]
    assert main(["import-stats", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDINGS.iterdir()))
def test_what_happens_while_the_snapshot_is_taken_is_not_taken_for_its_state(name: str) -> None:
    """Statistics taken over a span of lines: counts of consumers with deliveries or acks in the span are not used."""
    cut = Cut(RECORDINGS / name, 0.3)
    later = cut.whole.events.slice(cut.at).to_pylist()
    stop = next(at for at, row in enumerate(later) if row["kind"] == "ack")
    if any(row["kind"] in ("consumer_added", "consumer_removed") for row in later[: stop + 1]):
        pytest.skip("a consumer joins or leaves in the span")
    snapshot = snapshot_of(cut.documents(), cut.trace.subscription)
    taken_us = cut.taken_us[0], later[stop]["t_us"]
    names = {n: cut.names[n] for n in cut.truth.connected}
    rest = cut.rest(OVERLAP)
    early = rest.events.slice(0, OVERLAP).to_pylist()
    for row in early:
        if row["kind"] == "consumer_added":
            names.pop(row["consumer"], None)
    made = from_snapshot(rest, snapshot, taken_us, names)
    line = json.loads(made.log.events["checkpoint_json"][0].as_py())
    for row in later:
        if row["t_us"] <= taken_us[1]:
            cut.truth.take(row)
    touched = {row["consumer"] for row in later[: stop + 1] if row["kind"] in ("sent", "ack", "redeliver")}
    assert touched
    assert {consumer["consumer"] for consumer in line["consumers"] if "permits" in consumer}.isdisjoint(
        touched
    )
    for number, positions in line["pending_acks"].items():
        assert set(positions) <= {text(position) for position in cut.truth.pending[int(number)]}
    ledger, entry = (int(part) for part in line["read_position"].split(":"))
    assert max(cut.truth.sent) < (ledger, entry)
