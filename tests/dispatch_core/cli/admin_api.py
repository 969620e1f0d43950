"""A server that answers as a broker's admin API does, with statistics of known states."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.dispatch_core.diagnose.statistics import lines_of


class Broker(ThreadingHTTPServer):
    """Answers as the admin API does, with the moments of a state, one after the other."""

    def __init__(self, state: str, token: str | None = None, partitions: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moments = lines_of("4.2.4", state)
        self.token, self.partitions = token, partitions
        self.asked: list[str] = []
        self.rights = True
        self.owner: str | None = None  # of the topic, if that is another broker

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str) -> Any:
        number = sum(asked.endswith("/stats") for asked in self.asked) - 1
        moment = self.moments[min(max(number, 0), len(self.moments) - 1)]
        if path.endswith("/partitions"):
            return {"partitions": self.partitions}
        if path.endswith("/stats"):
            return moment["stats"]
        if path.endswith("/internalStats"):
            return moment["internal"]
        if path.endswith("/configuration/runtime"):
            return {
                "keySharedLookAheadMsgInReplayThresholdPerConsumer": "20",
                "keySharedLookAheadMsgInReplayThresholdPerSubscription": "20000",
            }
        return None


class _Handler(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        broker = self.server
        broker.asked.append(self.path)
        if broker.owner is not None:
            self.send_response(307)
            self.send_header("Location", f"{broker.owner}{self.path}")
            self.end_headers()
            return
        allowed = broker.token is None or self.headers.get("Authorization") == f"Bearer {broker.token}"
        if not allowed or ("/brokers/" in self.path and not broker.rights):
            self.send_error(401)
            return
        body = b"4.2.4" if self.path.endswith("/version") else json.dumps(broker.answer(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Print nothing."""


@contextmanager
def serving(broker: Broker) -> Iterator[Broker]:
    """Let a broker answer in a thread of its own."""
    thread = threading.Thread(target=broker.serve_forever)
    thread.start()
    try:
        yield broker
    finally:
        broker.shutdown()
        thread.join()
        broker.server_close()
