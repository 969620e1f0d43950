"""Sources of recorded logs, and the *namespace* of each: the folder of the home with all that belongs to it.

Intervals of two sources would replace each other in one table, so each source has landing, tables, pages and alerts of its
own:

| source | namespace | DAG |
|---|---|---|
| ``DISPATCH_AUDIT_SOURCE`` | the home itself | ``dispatch_audit`` |
| each of ``DISPATCH_AUDIT_SOURCES`` | ``sources/<name>`` | ``dispatch_audit_<name>`` |
| any other that a run was triggered with | ``ad-hoc/<words of its path>-<digest>`` | |

A run with another settings file than its source's has another namespace, too, because its verdicts are others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatch_airflow.home import HOME_VARIABLE, Home, ParameterError

SOURCE_VARIABLE: Final = "DISPATCH_AUDIT_SOURCE"
#: Further sources, as a JSON object: name → URL, or name → object with the fields of ``_FIELDS``.
SOURCES_VARIABLE: Final = "DISPATCH_AUDIT_SOURCES"
#: Path of a file of settings that hold in place of those in the logs' headers.
SETTINGS_VARIABLE: Final = "DISPATCH_AUDIT_SETTINGS"

DAG_ID: Final = "dispatch_audit"
#: Folders of the home that hold namespaces.
CONFIGURED: Final = "sources"
AD_HOC: Final = "ad-hoc"
#: A name that may stand in a DAG id.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")
_TAKEN: Final = frozenset(("alerts", "maintenance", "watch"))
_FIELDS: Final = frozenset(("source", "connection", "settings_file", "follow_links"))
_NAMESPACE: Final = re.compile(rf"({CONFIGURED}|{AD_HOC})/[a-z0-9][a-z0-9_-]{{0,60}}")
_LONGEST_WORDS: Final = 40
#: Airflow shows it in place of the number of a task that is mapped over namespaces.
MAP_INDEX_TEMPLATE: Final = "{{ task.op_kwargs['namespace'] or 'the scheduled source' }}"


@dataclass(frozen=True, slots=True)
class Source:
    """A source that is audited by a DAG of its own.

    ``name``: empty for the one of ``DISPATCH_AUDIT_SOURCE``. ``url``: a folder, or a URL for Airflow's object storage.
    ``connection``: id of an Airflow connection for it. ``settings_file``: path, or None.
    """

    name: str
    url: str
    connection: str | None = None
    settings_file: str | None = None
    follow_links: bool = False

    @property
    def dag_id(self) -> str:
        """Id of the DAG that audits the source."""
        return f"{DAG_ID}_{self.name}" if self.name else DAG_ID

    @property
    def namespace(self) -> str:
        """The folder below the home with all that belongs to the source."""
        return f"{CONFIGURED}/{self.name}" if self.name else ""

    def is_read_with(self, url: str, settings_file: str | None) -> bool:
        """True if a run with this source and this settings file is one of this source."""
        return (_plain(url), _plain(settings_file)) == (_plain(self.url), _plain(self.settings_file))


def configured() -> list[Source]:
    """List the sources that the environment names; the one without a name first.

    Raises ``ParameterError``, which Airflow shows as an import error of the DAG, for a value that is no list of sources.
    """
    # As text: credentials are looked up when a task runs.
    home = Home(os.environ.get(HOME_VARIABLE) or ".dispatch-audit").root
    settings_file = os.environ.get(SETTINGS_VARIABLE) or None
    first = Source("", os.environ.get(SOURCE_VARIABLE) or f"{home}/incoming", settings_file=settings_file)
    return [first, *_further(os.environ.get(SOURCES_VARIABLE) or "{}", settings_file)]


def source_of(dag_id: str) -> Source:
    """Return the source that a DAG audits. Raises ``ParameterError`` if the environment no longer names it."""
    for source in configured():
        if source.dag_id == dag_id:
            return source
    raise ParameterError(f"{SOURCES_VARIABLE} names no source of the DAG {dag_id!r}; nothing was done")


def namespace_of(url: str, settings_file: str | None, known: Iterable[Source]) -> str:
    """Return the namespace of a run: that of a known source, or one made of the source's address.

    >>> namespace_of("s3://logs/orders", None, [Source("orders", "s3://logs/orders/")])
    'sources/orders'
    >>> namespace_of("s3://logs/incident-7/eu", None, [])
    'ad-hoc/incident-7-eu-71e37609'
    """
    for source in known:
        if source.is_read_with(url, settings_file):
            return source.namespace
    path = _plain(url).partition("://")[2] or _plain(url)
    words = re.sub(r"[^a-z0-9]+", "-", "-".join(path.split("/")[-2:]).lower()).strip("-")
    named = "\n".join((_plain(url), _plain(settings_file)))
    digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{AD_HOC}/" + "-".join(filter(None, (words[:_LONGEST_WORDS].strip("-"), digest)))


def is_namespace(text: str) -> bool:
    """True for the name of a namespace below the home; the home itself has none."""
    return _NAMESPACE.fullmatch(text) is not None


def source_name(namespace: str) -> str | None:
    """Return the name of the source with a namespace; empty for the one without a name, None for an ad-hoc one.

    >>> source_name("sources/orders"), source_name(""), source_name("ad-hoc/logs-71e37609")
    ('orders', '', None)
    """
    kind, _slash, name = namespace.partition("/")
    return None if kind == AD_HOC else name


def namespaces(home: Home) -> list[str]:
    """List the namespaces that the home holds, its own (empty) first."""
    found = [""]
    for kind in (CONFIGURED, AD_HOC):
        folder = Home(home.root, kind).place
        if folder.exists():
            found += sorted(f"{kind}/{below.name}" for below in folder.folders())
    return [namespace for namespace in found if not namespace or is_namespace(namespace)]


def _further(text: str, settings_file: str | None) -> list[Source]:
    try:
        named = json.loads(text)
    except ValueError as error:
        raise ParameterError(f"{SOURCES_VARIABLE} is no JSON: {error}") from None
    if not isinstance(named, dict):
        raise ParameterError(
            f'{SOURCES_VARIABLE} must be a JSON object of names and URLs, such as {{"orders": "s3://bucket/orders"}}'
        )
    return [_source(name, given, settings_file) for name, given in named.items()]


def _source(name: str, given: object, settings_file: str | None) -> Source:
    where = f"{SOURCES_VARIABLE}: source {name!r}"
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ParameterError(
            f"{where}: a name has lower-case letters, digits and _, at most 40, and is not {' or '.join(sorted(_TAKEN))}"
        )
    fields: Mapping[str, Any] = {"source": given} if isinstance(given, str) else given  # type: ignore[assignment]
    if (
        not isinstance(fields, dict)
        or not isinstance(fields.get("source"), str)
        or not fields["source"].strip()
    ):
        raise ParameterError(f"{where}: give its URL, or an object with the URL as 'source'")
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise ParameterError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    for field in ("connection", "settings_file"):
        if not isinstance(fields.get(field), str | None):
            raise ParameterError(f"{where}: {field} is {fields[field]!r}; give a text")
    if not isinstance(fields.get("follow_links", False), bool):
        raise ParameterError(f"{where}: follow_links is {fields['follow_links']!r}; give true or false")
    return Source(
        name,
        fields["source"],
        fields.get("connection"),
        fields.get("settings_file") or settings_file,
        fields.get("follow_links", False),
    )


def _plain(address: str | None) -> str:
    """Write an address in one way: without a slash at its end, a path of this machine from its root."""
    text = (address or "").strip()
    if not text:
        return ""
    return text.rstrip("/") if "://" in text else str(Path(os.path.abspath(Path(text).expanduser())))  # noqa: PTH100
