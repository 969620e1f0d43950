"""Post to the webhook of an Airflow connection without showing its URL anywhere.

The URL of a chat's webhook is its password: whoever has it can post. Messages and errors have its scheme and host only. The
request is sent here and not by Airflow's HTTP hook, because the hook logs the URL when a connection fails, and the text of
every answer with an error, which may repeat the URL.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from airflow.sdk import Connection

_TIMEOUT_S: Final = 10.0
_MAX_TIMEOUT_S: Final = 60.0
#: Loggers of the HTTP library that write paths and query strings.
_HTTP_LOGGERS: Final = ("urllib3.connectionpool", "urllib3.util.retry", "requests")


#: Answers about the message itself; a shorter or another one may be taken.
_REFUSED: Final = (400, 413, 422)


class ChannelError(Exception):
    """A message that was not delivered. Its text has nothing secret, so of a webhook's URL scheme and host at most.

    ``refused``: the service answered, and does not take this message; it may take others.
    """

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.refused = status in _REFUSED


class ChannelSetupError(ChannelError):
    """A channel that cannot work until somebody corrects its connection, or installs its provider."""


def post(webhook: Connection, body: Mapping[str, Any], key: str) -> None:
    """Post a body once, without following redirects.

    Args:
        webhook: connection of type HTTP. ``host`` is the URL; login, headers, proxies, certificates as for Airflow's hook.
        body: is sent as JSON.
        key: idempotency key.

    Raises:
        ChannelError: no answer, or one whose status is not 2xx.
    """
    from airflow.sdk.log import mask_secret

    for secret in _secrets(webhook):
        mask_secret(secret)
    # Raised outside of ``except``: the library's errors contain the URL and must not come along as their context.
    failure, status = _failure(webhook, body, key)
    if failure is not None:
        raise ChannelError(failure, status=status)


def shown(webhook: Connection) -> str:
    """Write the part of the URL that is no secret: ``https://host/…``."""
    try:
        parts = urlsplit(_address(webhook))
        host = parts.hostname
    except ValueError:
        return "the webhook"
    if parts.scheme not in ("http", "https") or not host:
        return "the webhook"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}/…"


def _failure(webhook: Connection, body: Mapping[str, Any], key: str) -> tuple[str | None, int | None]:
    """Send a request; return why it was not delivered, or None, and the status of the answer, if there was one."""
    try:
        with silent(_HTTP_LOGGERS):
            status = _send(webhook, body, key)
    except Exception as error:  # noqa: BLE001 - every library's error may contain the URL
        return f"{shown(webhook)}: {reason(error)}", None
    if 200 <= status < 300:
        return None, status
    advice = ": redirects are not followed, set the URL that it leads to" if 300 <= status < 400 else ""
    return f"{shown(webhook)} answered with status {status}{advice}", status


def _send(webhook: Connection, body: Mapping[str, Any], key: str) -> int:
    """Send a request with the connection's login, headers, proxies and certificates; return the answer's status."""
    import requests
    from airflow.providers.http.hooks.http import HttpHook

    extra = webhook.extra_dejson
    timeout_s = min(float(extra.get("timeout") or _TIMEOUT_S), _MAX_TIMEOUT_S)
    # A certificate file may be given; verification cannot be turned off.
    verify = extra.get("verify") if isinstance(extra.get("verify"), str) else True
    hook = HttpHook(method="POST", http_conn_id=webhook.conn_id)
    # The hook sends extra fields that it does not know as headers; None removes this one.
    headers = {"Idempotency-Key": key, "format": None}
    with hook.get_conn(headers, {"timeout": timeout_s, "verify": verify, "check_response": True}) as session:
        request = session.prepare_request(
            requests.Request("POST", hook.url_from_endpoint(None), json=dict(body))
        )
        network = session.merge_environment_settings(
            request.url, session.proxies, session.stream, session.verify, session.cert
        )
        with session.send(request, timeout=timeout_s, allow_redirects=False, **network) as answer:
            return int(answer.status_code)


def reason(error: BaseException) -> str:
    """Write an error of a library without its text, which may contain a URL or a key.

    The system's own words (``Connection refused``, a certificate's fault) are kept.
    """
    import ssl

    name = type(error).__name__
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            detail = getattr(cause, "verify_message", "") or cause.reason or ""
            return f"{name}: {cause.reason or type(cause).__name__}: {detail}".rstrip(": ")
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno is not None and cause.strerror:
            return f"{name}: {cause.strerror}"
    return name


def _causes(error: BaseException) -> Iterator[BaseException]:
    """List an error and those it was made from, as ``requests`` and ``urllib3`` nest them."""
    waiting: list[BaseException] = [error]
    known: set[int] = set()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) in known:
            continue
        known.add(id(cause))
        yield cause
        nested = [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
        waiting += [part for part in nested if isinstance(part, BaseException)]


def _address(webhook: Connection) -> str:
    address = webhook.host or ""
    return address if "://" in address else f"{webhook.schema or 'http'}://{address}"


def _secrets(webhook: Connection) -> list[str]:
    """List the parts of the URL that Airflow is to mask in the logs of the task, longest first."""
    address = _address(webhook)
    try:
        parts = urlsplit(address)
    except ValueError:
        return [address]
    path, user_info = parts.path, parts.netloc.rpartition("@")[0]
    queried = f"{path}?{parts.query}" if parts.query else ""
    pieces = [
        queried,
        path if len(path) > 1 else "",
        parts.query,
        parts.fragment,
        user_info,
        parts.password or "",
    ]
    both = {text for piece in pieces for text in (piece, unquote(piece)) if text}
    return sorted(both, key=lambda text: (-len(text), text))


class _Quiet(logging.Filter):
    """Drop the records of the thread that made this filter, or of all threads."""

    def __init__(self, *, all_threads: bool) -> None:
        super().__init__()
        self._thread = None if all_threads else threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return self._thread is not None and record.thread != self._thread


@contextmanager
def silent(names: tuple[str, ...], *, all_threads: bool = False) -> Iterator[None]:
    """Let these loggers write nothing of this thread; ``all_threads``: for a library that sends in threads of its own."""
    quiet = _Quiet(all_threads=all_threads)
    for name in names:
        logging.getLogger(name).addFilter(quiet)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeFilter(quiet)
