"""Alerts tell each finding once, say what broke, how often, with evidence; names forge no header."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dispatch_core.audit.active_topics import ACTIVE_TIMES, failover_imbalances
from dispatch_core.audit.limits import Limits
from dispatch_expectations import alert_ledger
from dispatch_expectations.alert import (
    FileAlertSink,
    Places,
    build_alerts,
    read_alerts,
    send_news,
)
from dispatch_expectations.alert_message import MAX_PAYLOAD_FINDINGS, MAX_QUOTED, Alert, Digest, chat
from dispatch_expectations.alert_routes import AlertRules, Channel, Route
from dispatch_expectations.alert_state import CHANGED, Notification
from dispatch_expectations.dispatcher_results import NOBODY, DispatcherResult, read_results
from dispatch_expectations.policy import load_policy
from dispatch_expectations.validate import validate_interval
from dispatch_expectations.verdict import NOT_CERTAIN
from spark_jobs.location import Location
from spark_jobs.replay.as_of import INTERVAL_END, LAST_LINE
from tests.expectations.make import DAY, NEXT_DAY, TOPIC, Day
from tests.expectations.remembered import remembered  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("remembered")

FORGED = "t\r\nBcc: all@example.org"
FIRST = DAY - timedelta(days=1)


def judge(home: Path, day: Day) -> list[DispatcherResult]:
    """Write a day (again) and judge it."""
    warehouse = home / "warehouse"
    for table in warehouse.glob("[a-z]*"):
        if table.name not in ("verdicts", alert_ledger.TABLE):
            shutil.rmtree(table)
    day.write(warehouse)
    validate_interval(warehouse, day.interval_start, home / "docs")
    return read_results(warehouse, day.interval_start)


def places(home: Path) -> Places:
    return Places(Location.of(home / "warehouse"), Location.of(home / "docs"))


def alerts_of(home: Path, day: Day) -> list[Alert]:
    """Build the alerts of a day without earlier notifications."""
    return build_alerts(judge(home, day), {}, places(home))


def broken_day() -> Day:
    day = Day()
    day.dispatcher("persistent://public/default/healthy")
    who = day.dispatcher()
    day.anomaly(who, "out_of_order")
    day.anomaly(who, "out_of_order", seqs=[9, 10], positions=["5:9", "5:8"])
    day.anomaly(who, "split_key", key="order-18", seqs=[5, 6])
    day.anomaly(who, "ack_hole", key=None, severity="minor", seqs=[7, 7])
    day.anomaly(who, "redelivered", cause="nack")
    day.anomaly(day.dispatcher(FORGED), "out_of_order", key="k\nVerdict: PASS")
    day.dispatcher("blind")
    day.rows["dispatcher_state"][-1]["not_judged_reason"] = "the rule of 3.x is not replayed"
    return day


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged day: two broken dispatchers, one not judged, one healthy."""
    folder = tmp_path_factory.mktemp("broken")
    alerts_of(folder, broken_day())
    return folder


@pytest.fixture(scope="module")
def alerts(home: Path) -> list[Alert]:
    return build_alerts(read_results(home / "warehouse", DAY), {}, places(home))


def test_the_text_has_key_positions_reason_and_where_to_look(home: Path, alerts: list[Alert]) -> None:
    (alert,) = (sent for sent in alerts if sent.topic == TOPIC)
    assert (alert.topic, alert.verdict, alert.severity) == (TOPIC, "FAIL", "critical")
    assert alert.subject == f"[dispatch-audit] FAIL {TOPIC} audit, 2026-11-21: 3 new"
    for part in (
        "Interval: 2026-11-21 (UTC, from 2026-11-21T00:00:00+00:00)",
        "entries sent after a later entry of their key: 2",
        "- out_of_order: 2",
        "new: out_of_order (critical), key order-17, 2 times",
        "out_of_order: key order-17 went backwards at worker-2: it got 5:2 and then 5:1",
        "positions: 5:2 and 5:1",
        "new: split_key (critical), key order-18, 1 times",
        f"Data Docs: {home / 'docs/2026-11-21/index.html'}",
        str(home / "warehouse"),
    ):
        assert part in alert.body, part
    assert "redelivered" not in alert.body
    assert [(finding.kind, finding.subject, finding.severity, finding.count) for finding in alert.news] == [
        ("out_of_order", "key order-17", "critical", 2),
        ("split_key", "key order-18", "critical", 1),
        ("ack_hole", "consumer 0", "minor", 1),
    ]


def test_findings_of_one_root_cause_are_told_in_one_sentence(alerts: list[Alert]) -> None:
    """The two entries out of order and the split key have their consumer in common, the hole in the acks has nothing."""
    (alert,) = (sent for sent in alerts if sent.topic == TOPIC)
    (cause,) = alert.root_causes
    assert cause.startswith("2 out_of_order, 1 split_key at connection 0")
    assert "the worst are order-17 and order-18" in cause
    explained, listed = alert.body.split("\nNew or changed")
    happened, advice = explained.split("\nWhat would have prevented the order violations\n")
    assert happened.endswith(f"\nWhat happened\n- {cause}\n")
    assert advice.startswith("- Advice was not computed: the run that judged the interval did not get to it.")
    assert alert.news[0].explanation in cause
    assert alert.news[0].explanation not in listed
    assert alert.as_json()["root_causes"] == [cause]
    (hole,) = (finding for finding in alert.news if finding.kind == "ack_hole")
    assert (hole.root_cause, hole.explanation in listed) == ("", True)


def test_links_are_those_that_the_caller_makes(home: Path) -> None:
    where = replace(places(home), run="https://airflow/run", of=lambda path: f"https://airflow/{path.name}")
    alert = build_alerts(read_results(home / "warehouse", DAY), {}, where)[0]
    assert dict(alert.where)["Airflow run"] == "https://airflow/run"
    assert "- Data Docs: https://airflow/index.html" in alert.body
    assert alert.as_json()["links"]["Data Docs"] == "https://airflow/index.html"


def test_unknown_alerts_too_and_says_why(alerts: list[Alert]) -> None:
    alert = alerts[-1]
    assert (alert.verdict, alert.topic) == ("UNKNOWN", "blind")
    assert "conformance: UNKNOWN: decisions were not compared with the rule: the rule of 3.x" in alert.body
    assert [(finding.kind, finding.subject, finding.severity) for finding in alert.news] == [
        ("conformance", "subscription", "minor")
    ]


def test_whoever_passed_gets_no_alert(alerts: list[Alert]) -> None:
    assert sorted(alert.topic for alert in alerts) == ["blind", TOPIC, FORGED]


def test_names_cannot_forge_a_mail_header(alerts: list[Alert]) -> None:
    (alert,) = (sent for sent in alerts if sent.topic == FORGED)
    assert alert.subject.isprintable()
    assert not any(line.startswith(("Bcc:", "Verdict: PASS")) for line in alert.body.splitlines())


def news_sent(
    home: Path, day: Day, channel: str = "mail", refuse: bool = False
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Judge a day and tell it; what was sent: topic and (state, kind) of each news."""

    def send(_alert: Alert) -> None:
        if refuse:
            raise ConnectionError("no answer")

    sent, _failed = send_news(channel, send, judge(home, day), places(home))
    return [(alert.topic, [(news.state, news.kind) for news in alert.news]) for alert in sent]


def spoiled(*kinds: str, start: datetime = DAY, **fields: object) -> Day:
    day = Day(start)
    who = day.dispatcher()
    for kind in kinds:
        day.anomaly(who, kind, **fields)
    return day


def test_each_finding_is_reported_once_then_changed_then_clear(tmp_path: Path) -> None:
    assert news_sent(tmp_path, spoiled("out_of_order", "split_key", start=FIRST)) == [
        (TOPIC, [("new", "out_of_order"), ("new", "split_key")])
    ]
    assert news_sent(tmp_path, spoiled("out_of_order", "split_key", start=FIRST)) == []
    assert news_sent(tmp_path, spoiled("out_of_order", positions=["6:1"])) == [
        (TOPIC, [("changed", "out_of_order"), ("clear", "split_key")])
    ]
    assert news_sent(tmp_path, spoiled(start=NEXT_DAY)) == [(TOPIC, [("clear", "out_of_order")])]
    assert news_sent(tmp_path, spoiled(start=NEXT_DAY + timedelta(days=1))) == []
    assert news_sent(tmp_path, spoiled("out_of_order", start=NEXT_DAY + timedelta(days=2))) == [
        (TOPIC, [("new", "out_of_order")])
    ]


def test_a_clear_message_says_what_is_gone(tmp_path: Path) -> None:
    news_sent(tmp_path, spoiled("out_of_order"))
    sent, _ = send_news("mail", lambda _: None, judge(tmp_path, spoiled()), places(tmp_path))
    assert sent[0].subject == f"[dispatch-audit] CLEAR {TOPIC} audit, 2026-11-21: 1 clear"
    assert (sent[0].verdict, sent[0].severity) == ("PASS", "info")
    assert sent[0].resolves
    assert (
        "- clear: out_of_order (critical), key order-17\n  no longer found: interval 2026-11-21 was judged without it; "
        "last reported for interval 2026-11-21" in sent[0].body
    )


def test_an_older_interval_judged_again_clears_nothing_of_a_newer_one(tmp_path: Path) -> None:
    news_sent(tmp_path, spoiled("out_of_order", start=FIRST))
    news_sent(tmp_path, spoiled("out_of_order", positions=["6:1"]))
    assert news_sent(tmp_path, spoiled(start=FIRST)) == []
    assert news_sent(tmp_path, spoiled()) == [(TOPIC, [("clear", "out_of_order")])]


@pytest.mark.slow
def test_unknown_never_clears(tmp_path: Path) -> None:
    news_sent(tmp_path, spoiled("out_of_order", start=FIRST))
    gap = spoiled()
    gap.anomaly(gap.rows["dispatcher_state"][0], "log_gap", key=None, severity="major")
    ((_topic, news),) = news_sent(tmp_path, gap)
    assert ("clear", "out_of_order") not in news
    assert ("new", "log_gap") in news
    # A violation of another key, beside a gap: the promise is FAIL, and what the gap hides is not known.
    both = spoiled("split_key", start=NEXT_DAY, key="order-99")
    both.anomaly(both.rows["dispatcher_state"][0], "log_gap", key=None, severity="major")
    ((_topic, news),) = news_sent(tmp_path, both)
    verdict = next(result for result in judge(tmp_path, both) if result.overall.topic == TOPIC).verdicts[
        "per_key_order"
    ]
    assert verdict.verdict == "FAIL"
    assert NOT_CERTAIN in verdict.reason
    assert ("clear", "out_of_order") not in news
    # Another key is out of order and nothing is in doubt: this one is gone.
    other = spoiled("split_key", start=NEXT_DAY + timedelta(days=1), key="order-99")
    ((_topic, news),) = news_sent(tmp_path, other)
    assert ("clear", "out_of_order") in news


@pytest.mark.slow
def test_what_may_only_not_be_old_enough_yet_clears_nothing(tmp_path: Path) -> None:
    news_sent(tmp_path, spoiled("never_delivered", "out_of_order", start=FIRST))
    unfinished = spoiled()
    unfinished.as_of = LAST_LINE
    unfinished.rows["dispatcher_state"][0]["last_t_us"] = 1_795_249_461_936_412
    results = judge(tmp_path, unfinished)
    assert {result.overall.verdict for result in results} == {"PASS"}
    assert news_sent(tmp_path, unfinished) == [(TOPIC, [("clear", "out_of_order")])]
    unfinished.as_of = INTERVAL_END
    assert news_sent(tmp_path, unfinished) == [(TOPIC, [("clear", "never_delivered")])]


@pytest.mark.slow
def test_a_dispatcher_that_was_not_judged_is_not_cleared(tmp_path: Path) -> None:
    news_sent(tmp_path, spoiled("out_of_order", start=FIRST))
    elsewhere = Day()
    elsewhere.dispatcher("persistent://public/default/other")
    assert news_sent(tmp_path, elsewhere) == []


def uneven(start: datetime, *topics: str, found: str | None = None, subscription: str = "audit") -> Day:
    """A day of some topics, with a finding over those whose names begin with ``found``."""
    day = Day()
    day.interval_start = start
    for topic in topics:
        day.dispatcher(topic, subscription)
    if found is not None:
        who = day.of("dispatcher_state", {"topic": topics[0], "subscription": subscription})[0]
        over = {name: who[name] for name in ("cluster", "subscription")} | {
            "topic": f"{found}*",
            "incarnation": 0,
        }
        fields = {"key": None, "positions": [], "consumers": [], "seqs": [], "t_us": None}
        day.anomaly(over, "failover_imbalance", severity="minor", **fields)
    return day


@pytest.mark.slow
def test_a_finding_over_topics_is_clear_once_its_topics_are_judged_without_it(tmp_path: Path) -> None:
    uneven_alert = ("t-*", [("new", "failover_imbalance")])
    assert news_sent(tmp_path, uneven(FIRST, "t-1", "t-2", found="t-")) == [uneven_alert]
    assert news_sent(tmp_path, uneven(DAY, "u-1")) == []
    assert news_sent(tmp_path, uneven(DAY, "t-1", subscription="other")) == []
    # about other topics of the same subscription: reported, and the first one stays open
    assert news_sent(tmp_path, uneven(DAY, "t-1", "t-11", found="t-1")) == [
        ("t-1*", [("new", "failover_imbalance")])
    ]
    unknown = uneven(NEXT_DAY, "t-1", "t-2")
    unknown.drop("balance", unknown.rows["dispatcher_state"][0])
    assert not [topic for topic, _news in news_sent(tmp_path, unknown) if topic.endswith("*")]
    clear = [("clear", "failover_imbalance")]
    news_of = dict(news_sent(tmp_path, uneven(NEXT_DAY, "t-1", "t-2")))
    assert (news_of["t-*"], news_of["t-1*"]) == (clear, clear)
    assert news_sent(tmp_path, uneven(NEXT_DAY + timedelta(days=1), "t-1", "t-2")) == []


@pytest.mark.slow
def test_rows_of_nobody_are_clear_once_there_are_none(tmp_path: Path) -> None:
    lost = spoiled(start=FIRST)
    lost.add("quarantine", source_file="landing/else/x.gz", reason="is cut short", raw_truncated=False)
    both = ("input_quality", "completeness")  # what was lost may be of entries that were never sent
    assert news_sent(tmp_path, lost) == [(NOBODY[1], [("new", promise) for promise in both])]
    assert news_sent(tmp_path, spoiled()) == [(NOBODY[1], [("clear", promise) for promise in both])]


@pytest.mark.slow
def test_other_numbers_of_the_same_trouble_are_no_news(tmp_path: Path) -> None:
    def quarantined(start: datetime, rows: int) -> Day:
        day = spoiled(start=start)
        file = day.rows["consumer_events"][0]["source_file"]
        for line in range(rows):
            day.add(
                "quarantine",
                source_file=file,
                source_line=start.day + line,
                reason="bad",
                raw_truncated=False,
            )
        return day

    assert news_sent(tmp_path, quarantined(FIRST, 1)) == [
        (TOPIC, [("new", "input_quality"), ("new", "completeness")])
    ]
    assert news_sent(tmp_path, quarantined(DAY, 7)) == []


@pytest.mark.slow
def test_a_broken_promise_is_reported_beside_an_anomaly_of_the_same_promise(tmp_path: Path) -> None:
    day = spoiled("unknown_consumer", key=None, severity="major")
    file = day.rows["consumer_events"][0]["source_file"]
    day.add("quarantine", source_file=file, source_line=7, reason="bad", raw_truncated=False)
    ((_topic, news),) = news_sent(tmp_path, day)
    assert news == [("new", "input_quality"), ("new", "unknown_consumer"), ("new", "completeness")]
    ((_topic, news),) = news_sent(
        tmp_path, spoiled("unknown_consumer", key=None, severity="major", start=NEXT_DAY)
    )
    assert news == [("clear", "input_quality"), ("clear", "completeness")]


@pytest.mark.slow
def test_a_tolerated_finding_is_not_reported_and_an_open_one_is_cleared(tmp_path: Path) -> None:
    news_sent(tmp_path, spoiled("out_of_order", "split_key"))
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {per_key_order: {out_of_order: 5}}\n")
    day = spoiled("out_of_order", "split_key")
    judge(tmp_path, day)
    validate_interval(tmp_path / "warehouse", DAY, tmp_path / "docs", load_policy(policy))
    results = read_results(tmp_path / "warehouse", DAY, load_policy(policy))
    sent, _ = send_news("mail", lambda _: None, results, places(tmp_path), policy=load_policy(policy))
    assert [(finding.state, finding.kind) for finding in sent[0].news] == [("clear", "out_of_order")]
    assert sent[0].verdict == "FAIL"
    assert not sent[0].resolves, "another finding of the subscription is open"
    assert sent[0].news[0].explanation == (
        "tolerated in interval 2026-11-21: 1 found, per_key_order.out_of_order allows 5 "
        f"(rule default of {policy}); last reported for interval 2026-11-21"
    )


def test_a_channel_that_was_down_tells_later_and_the_others_not_again(tmp_path: Path) -> None:
    day = spoiled("out_of_order")
    assert news_sent(tmp_path, day, "mail", refuse=True) == []
    assert news_sent(tmp_path, day, "webhook") == [(TOPIC, [("new", "out_of_order")])]
    assert news_sent(tmp_path, day, "mail") == [(TOPIC, [("new", "out_of_order")])]
    assert news_sent(tmp_path, day, "webhook") == []


def test_an_alert_that_is_sent_again_after_a_crash_has_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, seen = judge(tmp_path, spoiled("out_of_order")), []
    with monkeypatch.context() as dies:
        dies.setattr(
            "dispatch_expectations.alert.record_sent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            send_news("mail", seen.append, results, places(tmp_path))
    send_news("mail", seen.append, results, places(tmp_path))
    send_news("mail", seen.append, judge(tmp_path, spoiled()), places(tmp_path))
    send_news("mail", seen.append, judge(tmp_path, spoiled("out_of_order")), places(tmp_path))
    keys = [(alert.idempotency_key, alert.news[0].idempotency_key) for alert in seen]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3, "found again after it was clear is another news"


@pytest.mark.slow
def test_a_server_that_is_down_is_not_waited_for_once_per_message(tmp_path: Path) -> None:
    day = Day()
    for number in range(6):
        day.anomaly(day.dispatcher(f"topic-{number}"), "out_of_order")
    tried: list[Alert] = []

    def send(alert: Alert) -> None:
        tried.append(alert)
        raise ConnectionError("down")

    sent, failed = send_news("mail", send, judge(tmp_path, day), places(tmp_path))
    assert (len(sent), len(tried), len(failed)) == (0, 3, 6)
    assert [error is None for _alert, error in failed] == [False] * 3 + [True] * 3


@pytest.mark.slow
def test_many_findings_are_one_message_that_quotes_some_of_each_kind(tmp_path: Path) -> None:
    day = Day()
    who = day.dispatcher()
    for number in range(300):
        day.anomaly(who, "out_of_order", key=f"k{number:03}", seqs=[number, number])
    day.anomaly(who, "ack_hole", key=None, severity="minor", seqs=[900, 900])
    results = judge(tmp_path, day)
    sent, _ = send_news("mail", lambda _: None, results, places(tmp_path))
    assert len(sent) == 1
    assert sent[0].body.count("- new:") == MAX_QUOTED
    assert "- new: ack_hole" in sent[0].body
    assert "... and 251 more" in sent[0].body
    payload = sent[0].as_json()
    assert len(payload["findings"]) == MAX_PAYLOAD_FINDINGS
    assert payload["findings_left_out"] == 101
    assert send_news("mail", lambda _: None, results, places(tmp_path)) == ([], []), (
        "findings that are not quoted are counted"
    )
    assert len(chat(sent[0])) < 4000


@pytest.mark.slow
def test_permits_that_stay_off_are_reported_once_and_clear(tmp_path: Path) -> None:
    lost = {"key": None, "positions": [], "consumers": [3], "severity": "major"}
    sentence = "w2 has 1 permit too few for good, from seq 202 at 08:24:16.623 on"
    first = spoiled("permit_leak", seqs=[202, 724], explanation=sentence, **lost)
    (alert,) = build_alerts(judge(tmp_path / "text", first), {}, places(tmp_path / "text"))
    assert "- permit_leak: 1" in alert.body
    assert "new: permit_leak (major), consumer 3, 1 times" in alert.body
    assert sentence in alert.body
    assert "consumers whose permits the broker has lost or doubled for good: 1" in alert.body
    assert news_sent(tmp_path, first) == [(TOPIC, [("new", "permit_leak")])]
    goes_on = spoiled("permit_leak", start=NEXT_DAY, seqs=[202, 1500], explanation=sentence, **lost)
    assert news_sent(tmp_path, goes_on) == []
    assert news_sent(tmp_path, spoiled(start=NEXT_DAY + timedelta(days=1))) == [
        (TOPIC, [("clear", "permit_leak")])
    ]


@pytest.mark.slow
def test_a_chat_shows_names_as_text_and_mentions_nobody(tmp_path: Path) -> None:
    day = Day()
    day.anomaly(day.dispatcher("<!channel> @all"), "out_of_order", key="``` <@U1> & *bold*")
    where = replace(places(tmp_path), run="https://airflow/dags/d/runs/r?a=1&b=2")
    (alert,) = build_alerts(judge(tmp_path, day), {}, where)
    text = chat(alert)
    fence, block, links = text.split("```")
    assert fence == ""
    assert "&lt;!channel&gt; @all" in block
    assert "''' &lt;@U1&gt; &amp; *bold*" in block
    assert "<https://airflow/dags/d/runs/r?a=1&amp;b=2|Airflow run>" in links
    assert alert.idempotency_key in links
    assert "@all" not in links


def test_many_small_messages_do_not_leave_many_small_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    monkeypatch.setattr(alert_ledger, "_MAX_FILES", 4)
    who = "standalone", TOPIC, "audit"
    for number in range(1, 13):
        notification = Notification(
            "id", "split_key", "key k", DAY, number, CHANGED, "major", f"evidence {number}"
        )
        alert_ledger.record_sent(tmp_path, "mail", [(who, notification, f"key {number}")])
        alert_ledger.record_sent(tmp_path, "webhook", [(who, replace(notification, number=100), "key")])
    assert len(DeltaTable(str(tmp_path / alert_ledger.TABLE)).file_uris()) <= 5
    histories = alert_ledger.read_histories(tmp_path, "mail", [TOPIC])
    (history,) = histories[who].values()
    assert sorted(notification.number for notification in history.notifications) == list(range(1, 13))
    assert alert_ledger.read_histories(tmp_path, "mail", ["another topic"]) == {}


def test_the_file_holds_each_alert_once(tmp_path: Path, alerts: list[Alert]) -> None:
    sink = FileAlertSink(tmp_path / "alerts")
    assert [sink.send(alerts[:1]), sink.send(alerts), sink.send(alerts), sink.send([])] == [1, 2, 0, 0]
    kept = read_alerts(sink.folder)
    assert sorted(map(str, kept)) == sorted(str(alert.as_json()) for alert in alerts)
    assert {found.location.parent.name for found in sink.folder.files()} == {
        alert.interval for alert in alerts
    }


def test_writers_at_the_same_time_write_each_once(tmp_path: Path, alerts: list[Alert]) -> None:
    with ThreadPoolExecutor(8) as writers:
        sent = [writers.submit(FileAlertSink(tmp_path / "alerts").send, alerts) for _ in range(8)]
    assert all(outcome.result() in range(4) for outcome in sent)
    assert len(read_alerts(tmp_path / "alerts")) == 3


@pytest.mark.slow
def test_topics_that_are_all_active_at_one_consumer_alert_by_default(tmp_path: Path) -> None:
    """PIP-392's scenario, from the times of 100 topics to the alert: nothing but the shipped policy decides."""
    rows = [
        {
            "cluster": "standalone",
            "topic": f"persistent://public/default/t-{topic:03}",
            "subscription": "audit",
            "consumer_name": f"w{consumer}",
            "active_us": 1000 * (consumer == 0),
            "connected_us": 1000,
            "priority_level": 0,
        }
        for topic in range(100)
        for consumer in range(4)
    ]
    (found,) = failover_imbalances(pa.Table.from_pylist(rows, schema=ACTIVE_TIMES), Limits())
    day = Day()
    day.dispatcher()
    who = {name: found.pop(name) for name in ("cluster", "topic", "subscription")} | {"incarnation": 0}
    kind = found.pop("kind")
    del found["consumer_names"]
    day.anomaly(who, kind, **found)
    (alert,) = alerts_of(tmp_path, day)
    assert (alert.verdict, alert.topic) == ("FAIL", "persistent://public/default/t-0*")
    assert [finding.kind for finding in alert.news] == ["failover_imbalance"]
    assert "w0 is active for 100 of 100 topics" in alert.body
    day = Day()
    day.dispatcher()
    assert alerts_of(tmp_path / "next", day) == []


@pytest.mark.slow
def test_a_deleted_subscription_is_clear_and_the_reason_says_when(tmp_path: Path) -> None:
    day = spoiled("out_of_order", start=FIRST)
    end_subscription(day)
    news_sent(tmp_path, day)
    elsewhere = Day()
    elsewhere.dispatcher("persistent://public/default/other")
    sent, _ = send_news("mail", lambda _: None, keep_and_judge(tmp_path, elsewhere), places(tmp_path))
    ((finding,),) = [alert.news for alert in sent]
    assert (finding.state, finding.kind, sent[0].topic, sent[0].resolves) == (
        "clear",
        "out_of_order",
        TOPIC,
        True,
    )
    assert finding.explanation == (
        "the subscription was deleted at 2026-11-20 11:04:00 UTC; last reported for interval 2026-11-20"
    )
    again, _ = send_news("mail", lambda _: None, keep_and_judge(tmp_path, elsewhere), places(tmp_path))
    assert again == []


def test_a_subscription_that_was_made_again_after_its_deletion_is_not_clear(tmp_path: Path) -> None:
    day = spoiled("out_of_order", start=FIRST)
    end_subscription(day)
    line = end_subscription(day)
    line.update(seq=901, kind="consumer_added", consumer=1)
    news_sent(tmp_path, day)
    elsewhere = Day()
    elsewhere.dispatcher("persistent://public/default/other")
    assert send_news("mail", lambda _: None, keep_and_judge(tmp_path, elsewhere), places(tmp_path)) == (
        [],
        [],
    )


def end_subscription(day: Day) -> dict[str, object]:
    """Delete the day's first subscription, eleven hours after its begin; return the line."""
    who = day.rows["dispatcher_state"][0]
    identity = {name: who[name] for name in ("cluster", "topic", "subscription", "incarnation")}
    t_us = round((day.interval_start + timedelta(hours=11, minutes=4)).timestamp() * 1_000_000)
    file = day.rows["consumer_events"][0]["source_file"]
    return day.add(
        "consumer_events", **identity, seq=900, t_us=t_us, kind="subscription_deleted", source_file=file
    )


def keep_and_judge(home: Path, day: Day) -> list[DispatcherResult]:
    """Write a day beside the earlier ones and judge it."""
    day.write(home / "warehouse")
    validate_interval(home / "warehouse", day.interval_start, home / "docs")
    return read_results(home / "warehouse", day.interval_start)


def many(number: int, start: datetime = DAY, *, broken: bool = True) -> Day:
    """A day of some subscriptions, each with a finding; those with even numbers have a major one."""
    day = Day(start)
    for index in range(number):
        who = day.dispatcher(f"persistent://public/default/t-{index:02}")
        if broken:
            day.anomaly(who, "out_of_order", severity="critical" if index % 2 else "major")
    return day


@pytest.mark.slow
def test_more_messages_than_the_limit_are_one_digest_that_is_recorded_as_a_whole(tmp_path: Path) -> None:
    mail, seen = Channel("mail", "c", digest_above=5), []
    sent, failed = send_news(mail, seen.append, judge(tmp_path, many(6)), places(tmp_path))
    assert (len(sent), failed, [len(message.alerts) for message in seen]) == (6, [], [6])
    message = seen[0].message()
    assert message.subject == "[dispatch-audit] 6 FAIL, 2026-11-21: 6 new"
    assert "- out_of_order: 6" in message.body
    assert message.body.index("t-01") < message.body.index("t-00"), "the worst first"
    assert (message.severity, len(message.payload["worst"])) == ("critical", 6)
    assert send_news(mail, seen.append, judge(tmp_path, many(6)), places(tmp_path)) == ([], [])
    # Five are sent one by one, and another channel has its own limit.
    send_news(replace(mail, name="other"), seen.append, judge(tmp_path, many(5)), places(tmp_path))
    assert [len(message.alerts) for message in seen[1:]] == [1] * 5


@pytest.mark.slow
def test_a_digest_names_ten_subscriptions_and_counts_the_rest(tmp_path: Path) -> None:
    seen: list[Digest] = []
    send_news(Channel("mail", "c", digest_above=3), seen.append, judge(tmp_path, many(13)), places(tmp_path))
    body = seen[0].message().body
    assert body.count("- FAIL persistent://") == 10
    assert "... and 3 more" in body
    assert len(seen[0].message().chat) < 4000


@pytest.mark.slow
def test_a_digest_that_fails_leaves_all_its_alerts_to_send(tmp_path: Path) -> None:
    def refuse(_message: object) -> None:
        raise ConnectionError("down")

    mail = Channel("mail", "c", digest_above=3)
    sent, failed = send_news(mail, refuse, judge(tmp_path, many(4)), places(tmp_path))
    assert (len(sent), len(failed)) == (0, 4)
    assert len(send_news(mail, lambda _: None, judge(tmp_path, many(4)), places(tmp_path))[0]) == 4


@pytest.mark.slow
def test_a_channel_gets_new_findings_from_its_severity_on_and_what_it_knows_until_it_is_clear(
    tmp_path: Path,
) -> None:
    night, seen = Channel("night", "c", min_severity="critical"), []
    sent, _ = send_news(night, seen.append, judge(tmp_path, many(2)), places(tmp_path))
    assert [alert.topic[-4:] for alert in sent] == ["t-01"]
    milder = many(2, NEXT_DAY)
    for row in milder.rows["anomalies"]:
        row["severity"] = "minor"
    sent, _ = send_news(night, seen.append, judge(tmp_path, milder), places(tmp_path))
    assert [(alert.topic[-4:], alert.news[0].state) for alert in sent] == [("t-01", "changed")]
    clean = many(2, NEXT_DAY + timedelta(days=1), broken=False)
    sent, _ = send_news(night, seen.append, judge(tmp_path, clean), places(tmp_path))
    assert [(alert.topic[-4:], alert.news[0].state) for alert in sent] == [("t-01", "clear")]


def test_routes_choose_channels_and_name_the_team_and_a_reported_finding_is_cleared_where_it_was(
    tmp_path: Path,
) -> None:
    payments, others = Channel("payments", "c"), Channel("others", "c")
    routed = AlertRules((payments, others), (Route("*t-01", "*", ("payments",), "payments"),))
    results = judge(tmp_path, many(2))
    sent = {
        channel.name: send_news(channel, lambda _: None, results, places(tmp_path), rules=routed)[0]
        for channel in (payments, others)
    }
    assert {name: sorted(alert.topic[-4:] for alert in alerts) for name, alerts in sent.items()} == {
        "payments": ["t-00", "t-01"],
        "others": ["t-00"],
    }
    (alert,) = (alert for alert in sent["payments"] if alert.topic.endswith("t-01"))
    assert alert.as_json()["team"] == "payments"
    assert "Team: payments" in alert.body
    moved = AlertRules((payments, others), (Route("*t-01", "*", ("others",)),))
    results = judge(tmp_path, many(2, NEXT_DAY, broken=False))
    cleared, _ = send_news(payments, lambda _: None, results, places(tmp_path), rules=moved)
    assert sorted(alert.topic[-4:] for alert in cleared) == ["t-00", "t-01"]
