"""Read topics with Pulsar's Python client, which is imported only when used (extra ``record``).

Secrets are read from files and passed to the client only; no message of this module or of the client's log contains them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.extras import MissingExtraError
from dispatch_core.importers.topic_messages.entries import Position

_TIMEOUT_S: Final = 30
_SCHEMES: Final = ("pulsar://", "pulsar+ssl://")


class TopicError(DispatchAuditError):
    """A topic that cannot be read, or a service that cannot be reached."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of the service. Tokens and keys are kept as file names only."""

    service_url: str
    token_file: Path | None = None
    oauth2_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_trust_file: Path | None = None
    tls_allow_insecure: bool = False
    tls_any_hostname: bool = False

    def check(self) -> None:
        """Check the options before connecting. Raises ``TopicError``."""
        if not self.service_url.startswith(_SCHEMES):
            raise TopicError("--service-url: give it as pulsar://HOST:6650 or pulsar+ssl://HOST:6651")
        if "@" in self.service_url:
            raise TopicError("--service-url names a user or password: give a token with --token-file instead")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise TopicError("--tls-cert-file and --tls-key-file belong together: give both or none")
        ways = [self.token_file, self.oauth2_file, self.tls_cert_file]
        if sum(way is not None for way in ways) > 1:
            raise TopicError("give one of --token-file, --oauth2-file and --tls-cert-file")
        for file in (*ways, self.tls_key_file, self.tls_trust_file):
            if file is not None:
                _content(file)


def _content(file: Path) -> str:
    """A file's text without surrounding blanks. Raises ``TopicError``, which names the file but not its content."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TopicError(f"{file}: cannot be read: {why}") from None
    if not text:
        raise TopicError(f"{file}: it is empty")
    return text


def pulsar() -> Any:
    """Import the client. Raises ``MissingExtraError`` with the command that installs it."""
    try:
        import pulsar as module
    except ModuleNotFoundError as error:
        raise MissingExtraError("record", ["pulsar"]) from error
    return module


class Service:
    """A connected client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        #: The exception that a reader raises at its timeout.
        self.no_message: type[Exception] = pulsar().Timeout

    def partitions(self, topic: str) -> list[str]:
        """The topics that hold a topic's messages: its partitions, or itself."""
        return sorted(self._client.get_topic_partitions(topic), key=partition_of)

    def reader(self, topic: str, start: str | int | Position) -> Any:
        """A reader from ``earliest``, ``latest``, a time in milliseconds since the epoch, or after a position."""
        module = pulsar()
        message_id = module.MessageId.latest if start == "latest" else module.MessageId.earliest
        if isinstance(start, tuple):
            message_id = module.MessageId(partition_of(topic), *start, -1)
        reader = self._client.create_reader(
            topic,
            message_id,
            reader_name="dispatch-audit-record-messages",
            crypto_failure_action=module.ConsumerCryptoFailureAction.CONSUME,
        )
        if isinstance(start, int):
            reader.seek(start)
        return reader


@contextmanager
def connected(access: Access) -> Iterator[Service]:
    """A service for the duration of the block; exceptions of the client become ``TopicError``."""
    module = pulsar()
    client = None
    try:
        client = module.Client(
            access.service_url,
            authentication=_authentication(module, access),
            operation_timeout_seconds=_TIMEOUT_S,
            tls_trust_certs_file_path=None if access.tls_trust_file is None else str(access.tls_trust_file),
            tls_allow_insecure_connection=access.tls_allow_insecure,
            tls_validate_hostname=not access.tls_any_hostname,
            logger=_logger(),
        )
        yield Service(client)
    except module.PulsarException as error:
        raise TopicError(
            f"{access.service_url}: {str(error) or type(error).__name__}; the messages read so far were kept, and the next "
            "run continues after them"
        ) from error
    finally:
        if client is not None:
            client.close()


def _authentication(module: Any, access: Access) -> Any:
    if access.token_file is not None:
        file = access.token_file
        return module.AuthenticationToken(lambda: _content(file))  # read at every connection: tokens expire
    if access.oauth2_file is not None:
        return module.AuthenticationOauth2(_content(access.oauth2_file))
    if access.tls_cert_file is not None:
        return module.AuthenticationTLS(str(access.tls_cert_file), str(access.tls_key_file))
    return None


def _logger() -> logging.Logger:
    """A logger of the client's errors to stderr; by default the client logs to stdout."""
    logger = logging.getLogger("dispatch_audit.pulsar")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("pulsar client: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    return logger


def full_name(topic: str) -> str:
    """A topic's full name. Raises ``TopicError`` for a topic whose messages are not stored.

    >>> full_name("orders"), full_name("persistent://shop/eu/orders")
    ('persistent://public/default/orders', 'persistent://shop/eu/orders')
    """
    if topic.startswith("non-persistent://"):
        raise TopicError(
            f"{topic}: messages of a non-persistent topic are stored nowhere, so they cannot be recorded"
        )
    name = topic.removeprefix("persistent://")
    parts = name.split("/")
    if len(parts) == 1:
        parts = ["public", "default", name]
    if len(parts) != 3 or not all(parts):
        raise TopicError(f"{topic!r} is no topic: give it as persistent://TENANT/NAMESPACE/NAME")
    return "persistent://" + "/".join(parts)


def partition_of(topic: str) -> int:
    """The index at the end of a partition's name; -1 without one."""
    _, found, digits = topic.rpartition("-partition-")
    return int(digits) if found and digits.isascii() and digits.isdecimal() else -1
