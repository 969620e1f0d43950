"""The log of the Java interceptor at a real broker (``ClientLogIT``): all is read, nothing legal is called wrong."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.client_files import find_client_logs, read_client_logs
from tests.recorder.broker import TARGET

LOGS = TARGET.parent / "client" / "target" / "it" / "client-log" / "logs"


def test_the_log_is_whole() -> None:
    logs = read_client_logs(find_client_logs([LOGS]))
    assert logs.quarantine.num_rows == 0
    assert sorted(session.header["consumer"] for session in logs.sessions) == ["w1", "w2"]
    for session in logs.sessions:
        kinds = Counter(line.kind for line in session.lines)
        # The client asks for a batch once, though several of its messages may have been refused.
        assert kinds["client_received"] >= kinds["client_acked"] + kinds["client_nacked"] > 200
        assert kinds["client_nacked"] > 0
        assert session.lines[-1].kind == "footer"
        assert [line.seq for line in session.lines] == [*range(1, len(session.lines) + 1)]
        assert any(line.disconnected_us for line in session.lines)  # the unload
        assert {line.topic[-1:] for line in session.lines if line.topic} == {"0", "1"}


def test_nothing_legal_is_called_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(LOGS), "--json"]) in (0, 2)
    *findings, verdict = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    certain = [finding for finding in findings if not finding["uncertain"]]
    assert {finding["kind"] for finding in certain} <= {"redelivered", "overtaken_redelivery"}
    assert all(finding["cause"] for finding in certain)
    assert verdict["levels"] == ["C"]
