"""Write the texts of an alert: plain text for mail and file, a short form for chats, JSON for webhooks.

Names come from logs and may be hostile: they are escaped or printed without control characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dispatch_core.audit.sentences.lists import counts_by_name, listed
from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_expectations.alert_state import CHANGED, CLEAR, NEW, STATES
from dispatch_expectations.dispatcher_results import AlertFinding
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.promise import FAIL, PASS

#: Maximum number of findings in a mail, and in a chat.
MAX_QUOTED: Final = 50
MAX_QUOTED_IN_CHAT: Final = 10
#: Maximum number of findings in the JSON of an alert; the table has all.
MAX_PAYLOAD_FINDINGS: Final = 200
_MAX_SENTENCE: Final = 1000
_MAX_POSITIONS: Final = 10
#: Chats cut or split longer texts.
_MAX_CHAT_TEXT: Final = 3500


@dataclass(frozen=True, slots=True)
class Alert:
    """The news about one dispatcher of one interval.

    ``interval``: its name. ``promises``: name, verdict and reason of each promise that was not kept. ``counts``: all
    findings by kind. ``news``: the findings that are new, changed or clear, worst first, clear ones last. ``where``:
    names and targets of the pages to look at.
    """

    idempotency_key: str
    cluster: str
    topic: str
    subscription: str
    interval: str
    interval_start: str
    verdict: str
    severity: str
    promises: tuple[tuple[str, str, str], ...]
    counts: Mapping[str, int]
    news: tuple[AlertFinding, ...]
    where: tuple[tuple[str, str], ...]

    @property
    def subject(self) -> str:
        """Subject of the mail."""
        return _subject(self)

    @property
    def body(self) -> str:
        """Plain text; at most ``MAX_QUOTED`` findings are quoted."""
        return _body(self, self.quoted(MAX_QUOTED))

    @property
    def dispatcher(self) -> Dispatcher:
        """(cluster, topic, subscription)"""
        return self.cluster, self.topic, self.subscription

    def quoted(self, number: int) -> list[AlertFinding]:
        """Choose at most ``number`` of the news, the worst of each kind first; return them in the order of the news."""
        kinds: set[tuple[bool, str]] = set()
        ranked = []
        for order, finding in enumerate(self.news):
            kind = finding.state == CLEAR, finding.kind
            ranked.append((kind in kinds, order))
            kinds.add(kind)
        return [self.news[order] for order in sorted(order for _repeat, order in sorted(ranked)[:number])]

    def as_json(self) -> dict[str, Any]:
        """Payload for a webhook or a file: JSON types only, at most ``MAX_PAYLOAD_FINDINGS`` findings."""
        listed = self.quoted(MAX_PAYLOAD_FINDINGS)
        plain = (
            "idempotency_key",
            "cluster",
            "topic",
            "subscription",
            "interval_start",
            "verdict",
            "severity",
        )
        payload = {
            **{name: getattr(self, name) for name in (*plain, "subject", "body")},
            "links": dict(self.where),
            "counts": dict(self.counts),
            "findings": [asdict(finding) for finding in listed],
            "findings_left_out": len(self.news) - len(listed),
        }
        return json.loads(json.dumps(payload))  # type: ignore[no-any-return]


def _subject(alert: Alert) -> str:
    """Write one line: verdict, dispatcher, interval, and the numbers of news."""
    word = "CLEAR" if alert.verdict == PASS else alert.verdict
    names = f"{_name(alert.topic)} {_name(alert.subscription)}"
    return printable(
        f"[dispatch-audit] {word} {names}, {alert.interval}: {counted(alert.news)}", 2 * LONGEST_ON_PAGES
    )


def counted(news: Sequence[AlertFinding]) -> str:
    """Count the news by state: ``2 new, 1 clear``."""
    numbers = {state: sum(finding.state == state for finding in news) for state in STATES}
    return counts_by_name({state: number for state, number in numbers.items() if number})


def _body(alert: Alert, quoted: Sequence[AlertFinding]) -> str:
    """Write the plain text: what broke, how often, the findings, where to look.

    ``quoted``: the news to write out; the others are counted.
    """
    lines = [
        f"Verdict: {alert.verdict}",
        f"Topic: {_name(alert.topic)}",
        f"Subscription: {_name(alert.subscription)} (cluster {_name(alert.cluster)})",
        f"Interval: {alert.interval} (UTC, from {alert.interval_start})",
        f"News: {counted(alert.news)}",
    ]
    if alert.promises:
        lines += ["", "What broke" if alert.verdict == FAIL else "What could not be judged"]
        lines += [
            f"- {name}: {verdict}: {printable(why, _MAX_SENTENCE)}" for name, verdict, why in alert.promises
        ]
    if alert.counts:
        lines += ["", "How often", *(f"- {kind}: {count:,}" for kind, count in alert.counts.items())]
    present = [finding for finding in quoted if finding.state in (NEW, CHANGED)]
    cleared = [finding for finding in quoted if finding.state == CLEAR]
    if present:
        lines += ["", f"New or changed ({_of(len(present), alert.news, NEW, CHANGED)})"]
        lines += [text for finding in present for text in _finding(finding)]
    if cleared:
        lines += ["", f"Clear ({_of(len(cleared), alert.news, CLEAR)})"]
        lines += [text for finding in cleared for text in _finding(finding)]
    if len(quoted) < len(alert.news):
        lines += ["", f"... and {len(alert.news) - len(quoted):,} more: see the report and the tables"]
    lines += ["", "Where to look", *(f"- {name}: {target}" for name, target in alert.where)]
    return "\n".join(lines) + "\n"


def chat(alert: Alert) -> str:
    """Write the text for a Slack-compatible webhook, with everything that comes from a log in one block of code.

    In a block of code nothing is formatted and nobody is mentioned; ``& < >`` are escaped as Slack requires.
    """
    text = f"{alert.subject}\n{_body(alert, alert.quoted(MAX_QUOTED_IN_CHAT))}"
    text = text.partition("\nWhere to look\n")[0]
    if len(text) > _MAX_CHAT_TEXT:
        text = text[: _MAX_CHAT_TEXT - 1].rsplit("\n", 1)[0] + "\n…"
    links = [
        f"<{target}|{name}>" if target.startswith(("http://", "https://")) else f"{name}: `{target}`"
        for name, target in ((name, _escaped(target)) for name, target in alert.where)
    ]
    return f"{block(text)}\n{' · '.join(links)}\nidempotency key {alert.idempotency_key}"


def block(text: str) -> str:
    """Put ``text`` into one block of code; marks in the text that would end it are replaced."""
    inside = _escaped(text.replace("```", "'''"))
    return f"```\n{inside}\n```"


def _name(text: str) -> str:
    """Print a name from a log without control characters, which could forge a mail header."""
    return printable(text, LONGEST_ON_PAGES)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _of(shown: int, news: Sequence[AlertFinding], *states: str) -> str:
    total = sum(finding.state in states for finding in news)
    return f"{shown:,}" if shown == total else f"{shown:,} of {total:,}"


def _finding(finding: AlertFinding) -> list[str]:
    doubt = ", uncertain" if finding.uncertain else ""
    often = "" if finding.state == CLEAR else f", {finding.count:,} times"
    lines = [
        f"- {finding.state}: {finding.kind} ({finding.severity}{doubt}), {_name(finding.subject)}{often}"
    ]
    lines.append(f"  {printable(finding.explanation, _MAX_SENTENCE)}")
    if finding.positions:
        lines.append(f"  positions: {listed(map(_name, finding.positions), most=_MAX_POSITIONS)}")
    return lines
