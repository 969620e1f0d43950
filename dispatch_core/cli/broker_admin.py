"""Read a topic's statistics from a broker's admin API, for ``diagnose --admin-url``.

Only GET requests are sent. The token goes with redirects, as the clients of Pulsar send it: a broker redirects to the one
that owns the topic. It is never sent on from https to http.
"""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from dispatch_core.errors import DispatchAuditError

_TIMEOUT_S: Final = 10.0
#: An answer is larger than this only if it is none of the two documents.
_MOST_BYTES: Final = 256 << 20
#: The broker's clock is used if the machine's differs by more than its answers' resolution, seconds.
_CLOCKS_DIFFER_S: Final = 2.0


class AdminError(DispatchAuditError):
    """The broker cannot be asked, or refuses. ``status``: of HTTP, 0 = no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SafeRedirects(HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Follow a redirect, but not from https to http."""
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise HTTPError(req.full_url, code, f"it redirects to {newurl}, which is not https", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def token_of(path: Path | None) -> str | None:
    """Read a token from a file. Raises ``AdminError`` for a file without a usable token."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise AdminError(f"--token-file {path}: cannot be read: {reason}; nothing was asked") from None
    if not token or any(character.isspace() for character in token):
        raise AdminError(f"--token-file {path}: it holds no single token; nothing was asked")
    return token


@dataclass(slots=True)
class BrokerAdmin:
    """The admin API at a URL."""

    url: str
    token: str | None = None
    trust_file: Path | None = None
    _opener: OpenerDirector = field(init=False, repr=False)
    #: Seconds by which the broker's clock is ahead of this machine's.
    clock_ahead_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """Check the URL. Raises ``AdminError``."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise AdminError(
                f"--admin-url {self.url}: expected http://HOST:8080 or https://HOST:8443; nothing was asked"
            )
        if parts.username is not None:
            raise AdminError(
                "--admin-url: it holds a user name; give a token with --token-file; nothing was asked"
            )
        try:
            context = ssl.create_default_context(
                cafile=None if self.trust_file is None else str(self.trust_file)
            )
        except (OSError, ssl.SSLError) as error:
            raise AdminError(f"--tls-trust-file {self.trust_file}: {error}; nothing was asked") from None
        self._opener = build_opener(SafeRedirects(), HTTPSHandler(context=context))
        self.url = self.url.rstrip("/")

    def partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or its own name if it has none."""
        found = self._get(f"/admin/v2/{_path(topic)}/partitions")
        number = found.get("partitions") if isinstance(found, dict) else 0
        return (
            [f"{topic}-partition-{at}" for at in range(number)]
            if isinstance(number, int) and number > 0
            else [topic]
        )

    def statistics(self, topic: str) -> dict[str, Any]:
        """Return one moment of a topic: ``taken``, ``topic``, ``stats`` and ``internal``."""
        stats = self._get(f"/admin/v2/{_path(topic)}/stats")
        taken = datetime.fromtimestamp(time.time() + self.clock_ahead_s, UTC)
        internal = self._get(f"/admin/v2/{_path(topic)}/internalStats")
        return {
            "taken": taken.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "topic": topic,
            "stats": stats,
            "internal": internal,
        }

    def version(self) -> str:
        """Return the broker's release."""
        return str(self._get("/admin/v2/brokers/version", text=True)).strip()

    def settings(self) -> dict[str, str]:
        """Return the settings in force, by their ``broker.conf`` names; it takes the rights of a superuser."""
        found = self._get("/admin/v2/brokers/configuration/runtime")
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}

    def _get(self, path: str, *, text: bool = False) -> Any:
        url = f"{self.url}{path}"
        request = Request(url, headers={"Accept": "*/*" if text else "application/json"})  # noqa: S310 - checked above
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                data = answer.read(_MOST_BYTES)
                self._note_clock(answer.headers.get("Date"))
        except HTTPError as error:
            raise AdminError(_refused(url, error, has_token=self.token is not None), error.code) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise AdminError(f"{url}: no answer: {reason}; check --admin-url and the network") from None
        if text:
            return data.decode("utf-8", "replace")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise AdminError(f"{url}: the answer is no JSON; is it the admin API of a broker?") from None

    def _note_clock(self, date: str | None) -> None:
        if date is None:
            return
        try:
            ahead = parsedate_to_datetime(date).timestamp() - time.time()
        except (TypeError, ValueError):
            return
        self.clock_ahead_s = ahead if abs(ahead) > _CLOCKS_DIFFER_S else 0.0


def _refused(url: str, error: HTTPError, *, has_token: bool) -> str:
    if error.code in (401, 403):
        what = (
            "the token of --token-file is refused"
            if has_token
            else "it asks for a token; give one with --token-file"
        )
        return f"{url}: HTTP {error.code}: {what}"
    if error.code == 404:
        return f"{url}: HTTP 404: no such topic on this cluster, or it is not loaded; check --topic"
    return f"{url}: HTTP {error.code} {error.reason}"


def _path(topic: str) -> str:
    """The path of a topic in the API. Raises ``AdminError`` for a name that is none.

    >>> _path("persistent://public/default/orders"), _path("orders")
    ('persistent/public/default/orders', 'persistent/public/default/orders')
    """
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = "persistent", topic if topic.count("/") == 2 else f"public/default/{topic}"
    parts = rest.split("/", 2)
    if domain not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
        raise AdminError(f"--topic {topic}: expected persistent://TENANT/NAMESPACE/TOPIC; nothing was asked")
    return "/".join([domain, *(quote(part, safe="") for part in parts)])
