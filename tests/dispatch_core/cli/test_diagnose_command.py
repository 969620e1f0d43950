"""``dispatch-audit diagnose``: files, standard input, a polled broker, recordings, both; and how bad input ends."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.client import HTTPMessage
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from dispatch_core.cli.broker_admin import SafeRedirects
from dispatch_core.cli.main import main
from tests.dispatch_core.cli.admin_api import Broker, serving
from tests.dispatch_core.diagnose.statistics import STATISTICS, lines_of

DATA = Path(__file__).resolve().parents[2] / "data"
DRAIN = DATA / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch"
#: The middle of the silence behind seq 115, while c2 waits for six hashes of c1.
AT = "08:20:19.204021"
LOOK_AHEAD = STATISTICS / "4.2.4" / "key-shared-look-ahead.jsonl"
TOPIC = "persistent://public/default/orders"


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_people_get_the_answer_the_holder_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(LOOK_AHEAD)]) == 1
    text = capsys.readouterr().out
    assert "1. look_ahead_limit, possible: 541 entries wait" in text
    assert "holder   c1, /127.0.0.1:" in text
    assert "2. no_permits, certain: 40 entries wait" in text
    assert "known    #23231" in text
    assert "next     pulsar-admin brokers get-runtime-config" in text


def test_the_example_in_the_documentation_is_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DATA.parents[1] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    example = next(block for block in page.split("```") if block.startswith("\npersistent://"))
    main(["diagnose", str(STATISTICS / "4.2.4" / "key-shared-draining.jsonl")])
    assert capsys.readouterr().out.split() == example.split()


def test_json_has_a_stable_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--json", str(LOOK_AHEAD)]) == 1
    first, *_, end = objects(capsys)
    assert set(first) == {
        "kind", "topic", "subscription", "rule", "certainty", "waiting", "holders", "held_for", "explanation", "evidence",
        "decided_by", "since", "since_t_us", "since_what", "known_issues", "next", "log_agrees",
    }  # fmt: skip
    (issue,) = first["known_issues"]
    assert set(issue) == {"id", "title", "links", "kind", "releases", "mended_in", "cure"}
    assert (issue["id"], issue["kind"], issue["mended_in"]) == ("#23231", "limit", [])
    assert end == {"kind": "end", "subscriptions": 1, "logs": 0, "problems": []}


def test_settings_make_a_limit_known(capsys: pytest.CaptureFixture[str]) -> None:
    names = "keySharedLookAheadMsgInReplayThreshold"
    options = ["--set", f"{names}PerConsumer=20", "--set", f"{names}PerSubscription=20000"]
    assert main(["diagnose", "--json", str(LOOK_AHEAD), *options]) == 1
    first = objects(capsys)[0]
    assert (first["rule"], first["certainty"]) == ("look_ahead_limit", "certain")


def test_nothing_held_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(STATISTICS / "4.2.4" / "shared-idle.jsonl")]) == 0
    assert "nothing_waits, certain" in capsys.readouterr().out


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stats = json.dumps(lines_of("4.2.4", "shared-no-permits")[1]["stats"]).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stats)))
    assert main(["diagnose", "-", "--json"]) == 1
    assert objects(capsys)[0]["rule"] == "no_permits"


def test_one_bad_file_does_not_keep_the_others_from_being_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text('{"msgRateIn": 0.0, "subscr', encoding="utf-8")
    (tmp_path / "good.jsonl").write_text(LOOK_AHEAD.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["diagnose", "--json", str(tmp_path)]) == 1
    output = capsys.readouterr()
    *_, end = [json.loads(line) for line in output.out.splitlines()]
    assert len(end["problems"]) == 1
    assert "bad.json:1: JSON that breaks off" in output.err
    assert len(output.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "nothing to read"),
        (["no/such/file.json"], "there is no such file"),
        (["--admin-url", "http://127.0.0.1:1"], "--admin-url needs --topic"),
        (["--admin-url", "ftp://x", "--topic", "t"], "expected http://HOST:8080"),
        (["--admin-url", "http://u:p@127.0.0.1:1", "--topic", "t"], "it holds a user name"),
        (["--admin-url", "http://127.0.0.1:1", "--topic", "a/b/c/d://x"], "expected persistent://"),
        ([str(LOOK_AHEAD), "--save", "x"], "--save keeps what is polled"),
        ([str(LOOK_AHEAD), "--subscription", "other"], "no subscription matches --subscription other"),
        ([str(LOOK_AHEAD), "--broker-version", "new"], "is not a version"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_moments_without_times_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, moment in enumerate(lines_of("4.2.4", "shared-no-permits")):
        (tmp_path / f"stats-{number}.json").write_text(json.dumps(moment["stats"]), encoding="utf-8")
    assert main(["diagnose", "--json", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "name the files by time" in output.err
    assert json.loads(output.out.splitlines()[0])["certainty"] == "possible"


# --- a broker ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with serving(Broker(**request.param)) as served:
        yield served


POLL = ["--topic", TOPIC, "--every", "0.01", "--json"]


@pytest.mark.parametrize("broker", [{"state": "key-shared-look-ahead", "token": "t0k"}], indirect=True)
def test_a_broker_is_polled_with_a_token_from_a_file(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token, saved = tmp_path / "token", tmp_path / "saved.jsonl"
    token.write_text("t0k\n", encoding="utf-8")
    options = ["--admin-url", broker.url, "--token-file", str(token), "--save", str(saved), *POLL]
    options[options.index("--every") + 1] = "1.1"
    assert main(["diagnose", *options]) == 1
    first = objects(capsys)[0]
    # The broker's own settings make the limit known.
    assert (first["rule"], first["certainty"], first["topic"]) == ("look_ahead_limit", "certain", TOPIC)
    assert "/admin/v2/persistent/public/default/orders/stats" in broker.asked
    assert len(saved.read_text(encoding="utf-8").splitlines()) == 2
    assert main(["diagnose", "--json", str(saved)]) == 1
    assert objects(capsys)[0]["rule"] == "look_ahead_limit"


@pytest.mark.parametrize("broker", [{"state": "shared-no-permits", "token": "t0k"}], indirect=True)
def test_a_refused_token_is_named_and_files_are_answered(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong", encoding="utf-8")
    options = ["--admin-url", broker.url, "--token-file", str(token), "--topic", TOPIC, "--json"]
    assert main(["diagnose", *options]) == 2
    error = capsys.readouterr().err
    assert "HTTP 401: the token of --token-file is refused" in error
    assert "wrong" not in error
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps(broker.moments[1]["stats"]), encoding="utf-8")
    assert main(["diagnose", str(stats), *options]) == 1
    first, *_, end = objects(capsys)
    assert first["rule"] == "no_permits"
    assert len(end["problems"]) == 1


@pytest.mark.parametrize("broker", [{"state": "shared-no-permits"}], indirect=True)
def test_without_the_rights_of_a_superuser_it_is_answered_all_the_same(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.rights = False
    assert main(["diagnose", "--admin-url", broker.url, *POLL]) == 1
    first, *_, end = objects(capsys)
    assert first["rule"] == "no_permits"
    assert [problem.endswith("; it is answered without") for problem in end["problems"]] == [True, True]


@pytest.mark.parametrize("broker", [{"state": "shared-no-permits", "token": "t0k"}], indirect=True)
def test_a_redirect_to_the_owner_is_followed_with_the_token(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Broker("shared-no-permits", token="t0k")
    other.owner = broker.url
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    token = tmp_path / "token"
    token.write_text("t0k", encoding="utf-8")
    try:
        assert main(["diagnose", "--admin-url", other.url, "--token-file", str(token), *POLL]) == 1
    finally:
        other.shutdown()
        thread.join()
        other.server_close()
    assert objects(capsys)[0]["rule"] == "no_permits"
    assert any(path.endswith("/stats") for path in broker.asked)


def test_a_token_is_not_sent_on_from_https_to_http() -> None:
    request = Request("https://broker:8443/admin/v2/x", headers={"Authorization": "Bearer t0k"})
    with pytest.raises(HTTPError, match="which is not https"):
        SafeRedirects().redirect_request(
            request, io.BytesIO(), 307, "", HTTPMessage(), "http://elsewhere/admin/v2/x"
        )


@pytest.mark.parametrize("broker", [{"state": "shared-no-permits", "partitions": 3}], indirect=True)
def test_all_partitions_of_a_topic_are_polled(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--admin-url", broker.url, *POLL]) == 1
    *answers, end = objects(capsys)
    assert {answer["topic"] for answer in answers} == {f"{TOPIC}-partition-{at}" for at in range(3)}
    assert end["subscriptions"] == 3


def test_a_broker_that_cannot_be_reached_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker("shared-no-permits")
    broker.server_close()
    assert main(["diagnose", "--admin-url", broker.url, *POLL]) == 2
    assert "no answer: " in capsys.readouterr().err


def test_a_token_file_without_a_token_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "token"
    empty.write_text("\n", encoding="utf-8")
    assert (
        main(["diagnose", "--admin-url", "http://127.0.0.1:1", "--token-file", str(empty), "--topic", "t"])
        == 2
    )
    assert "holds no single token" in capsys.readouterr().err


# --- recordings -------------------------------------------------------------------------------------------------------


def test_a_recording_shows_its_blockers_at_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--json", str(DRAIN), "--at", AT]) == 1
    first, *_ = objects(capsys)
    assert (first["kind"], first["rule"], first["holder"]) == ("log", "draining_hash", "c1")
    assert (first["messages"], first["hashes"], first["held_for"]) == (24, 6, ["c2"])
    assert first["certainty"] == "certain"
    assert 0 < first["message_seconds"] < 24
    assert set(first["holder_positions"]) <= {f"3:{entry}" for entry in range(40)}


def test_at_its_end_nothing_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(DRAIN)]) == 0
    assert "nothing waits" in capsys.readouterr().out


def test_a_stall_of_a_log_names_the_known_issues_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--json", str(DATA / "stalls" / "4.2.4" / "stall-classic"), "--top", "1"]) == 1
    first, end = objects(capsys)
    assert (first["rule"], first["holder"]) == ("no_read", None)
    assert "#26454" in [issue["id"] for issue in first["known_issues"]]
    assert end["logs"] == 1


def test_what_holds_messages_now_counts_not_what_held_them_longest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At the end of this log all consumers have left; before, one without permits held most messages."""
    stall = DATA / "stalls" / "4.2.4" / "random-0069-classic-range-racing"
    assert main(["diagnose", "--json", str(stall)]) == 1
    first, *_ = objects(capsys)
    assert (first["rule"], first["messages"], first["held_for"]) == ("no_consumer", 193, [])


def test_statistics_and_a_log_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = lines_of("4.2.4", "key-shared-draining")
    for moment in both:
        moment["stats"]["subscriptions"] = {"audit": moment["stats"]["subscriptions"]["orders"]}
        moment["internal"]["cursors"] = {"audit": moment["internal"]["cursors"]["orders"]}
        moment.pop("topic")
    path = tmp_path / "stats.jsonl"
    path.write_text("".join(json.dumps(moment) + "\n" for moment in both), encoding="utf-8")
    assert main(["diagnose", "--json", str(path), str(DRAIN), "--at", AT]) == 1
    first, *_ = objects(capsys)
    assert (first["kind"], first["rule"], first["log_agrees"]) == ("statistics", "draining_hash", True)
    assert main(["diagnose", str(path), str(DRAIN), "--at", AT]) == 1
    assert "shows the same: draining_hash since" in capsys.readouterr().out
