"""Write the texts of an alert: plain text for mail and file, a short form for chats, JSON for webhooks.

Names come from logs and may be hostile: they are escaped or printed without control characters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dispatch_core.audit.promises.promise import FAIL, PASS
from dispatch_core.audit.sentences.lists import counts_by_name, listed
from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_core.report.advice import AdviceShown
from dispatch_expectations.alert_state import CHANGED, CLEAR, NEW, STATES, digest
from dispatch_expectations.dispatcher_results import AlertFinding, severity_rank
from dispatch_expectations.frames import Dispatcher

#: Maximum number of findings in a mail, and in a chat.
MAX_QUOTED: Final = 50
MAX_QUOTED_IN_CHAT: Final = 10
#: Maximum number of root causes in a mail, and in a chat.
MAX_CAUSES: Final = 10
MAX_CAUSES_IN_CHAT: Final = 3
#: Maximum number of findings in the JSON of an alert; the table has all.
MAX_PAYLOAD_FINDINGS: Final = 200
#: Subscriptions that a digest names.
WORST_IN_DIGEST: Final = 10
_MAX_SENTENCE: Final = 1000
_MAX_POSITIONS: Final = 10
#: Chats cut or split longer texts.
_MAX_CHAT_TEXT: Final = 3500


@dataclass(frozen=True, slots=True)
class Message:
    """A message in every form that some channel takes.

    ``body``: plain text. ``chat``: text for a Slack-compatible chat, with everything from logs in a block of code.
    ``payload``: for programs. ``links``: names and targets. ``incident``: the same for all messages about one trouble;
    ``resolves``: it is over.
    """

    key: str
    subject: str
    body: str
    chat: str
    payload: Mapping[str, Any]
    severity: str
    incident: str
    resolves: bool = False
    links: tuple[tuple[str, str], ...] = ()


def notice(subject: str, body: str, key: str) -> Message:
    """Make a message without findings, such as one about a run that failed; ``key`` is its idempotency key."""
    subject, text = printable(subject, 2 * LONGEST_ON_PAGES), f"{subject}\n{body}"
    return Message(
        key=key,
        subject=subject,
        body=body,
        chat=block(text),
        payload={"subject": subject, "body": body, "idempotency_key": key},
        severity="major",
        incident=digest(key),
    )


@dataclass(frozen=True, slots=True)
class Alert:
    """The news about one dispatcher of one interval.

    ``team``: to which the subscription belongs. ``resolves``: nothing that the channel reported of the subscription is open
    any more. ``interval``: its name. ``promises``: name, verdict and reason of each promise that was not kept. ``counts``:
    all findings by kind. ``news``: the findings that are new, changed or clear, worst first, clear ones last. ``where``:
    names and targets of the pages to look at. ``advice``: what would have prevented the order violations; ``None`` = the
    news are not about such.
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
    team: str | None = None
    resolves: bool = False
    advice: AdviceShown | None = None

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alert itself, as a digest has many."""
        return (self,)

    @property
    def subject(self) -> str:
        """Subject of the mail."""
        return _subject(self)

    @property
    def body(self) -> str:
        """Plain text; at most ``MAX_CAUSES`` root causes and ``MAX_QUOTED`` findings are quoted."""
        return _body(self, self.quoted(MAX_QUOTED), MAX_CAUSES)

    @property
    def root_causes(self) -> list[str]:
        """The root causes of what is new or changed, in the order of the news; of a finding that is alone there is none."""
        causes = (finding.root_cause for finding in self.news if finding.state != CLEAR)
        return [*dict.fromkeys(cause for cause in causes if cause)]

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
            "root_causes": [printable(cause, _MAX_SENTENCE) for cause in self.root_causes[:MAX_CAUSES]],
            "findings": [_as_json(finding) for finding in listed],
            "findings_left_out": len(self.news) - len(listed),
        }
        if self.team is not None:
            payload["team"] = self.team
        if self.advice is not None:
            payload["advice"] = {
                name: printable(value, _MAX_SENTENCE) for name, value in asdict(self.advice).items()
            }
        return json.loads(json.dumps(payload))  # type: ignore[no-any-return]

    def message(self) -> Message:
        """Write all its texts."""
        return Message(
            key=self.idempotency_key,
            subject=self.subject,
            body=self.body,
            chat=chat(self),
            payload=self.as_json(),
            severity=self.severity,
            incident=digest(*self.dispatcher),
            resolves=self.resolves,
            links=self.where,
        )


@dataclass(frozen=True, slots=True)
class Digest:
    """Many alerts of one interval in one message: their numbers, and the worst of them. ``alerts``: worst first."""

    alerts: tuple[Alert, ...]

    @property
    def idempotency_key(self) -> str:
        """Key of the message; it depends on every notification in it."""
        return digest(*(alert.idempotency_key for alert in self.alerts))

    @property
    def subject(self) -> str:
        """Subject of the mail."""
        return f"[dispatch-audit] {self._numbers()}, {self.alerts[0].interval}: {counted(self._news())}"

    @property
    def body(self) -> str:
        """Plain text: the numbers, and ``WORST_IN_DIGEST`` subscriptions with their first finding."""
        lines = [
            f"Subscriptions with news: {len(self.alerts):,} ({self._numbers()})",
            f"Interval: {self.alerts[0].interval} (UTC, from {self.alerts[0].interval_start})",
            f"News: {counted(self._news())}",
        ]
        kinds = Counter(finding.kind for finding in self._news() if finding.state != CLEAR)
        if kinds:
            lines += [
                "",
                "Findings, new or changed",
                *(f"- {kind}: {n:,}" for kind, n in kinds.most_common()),
            ]
        worst = self.alerts[:WORST_IN_DIGEST]
        lines += ["", f"The worst {len(worst):,}"]
        for alert in worst:
            team = f", team {_name(alert.team)}" if alert.team else ""
            lines.append(
                f"- {_word(alert)} {_name(alert.topic)} {_name(alert.subscription)}{team}: {counted(alert.news)}"
            )
            (first,) = alert.quoted(1)
            lines += [f"  {text}" for text in _finding(first)]
            if first.root_cause:
                lines.append(f"    {printable(first.root_cause, _MAX_SENTENCE)}")
        if len(worst) < len(self.alerts):
            lines += ["", f"... and {len(self.alerts) - len(worst):,} more: see the pages and the tables"]
        lines += ["", "Where to look", *(f"- {name}: {target}" for name, target in self._where())]
        return "\n".join(lines) + "\n"

    def message(self) -> Message:
        """Write all its texts."""
        key, subject, body = self.idempotency_key, self.subject, self.body
        return Message(
            key=key,
            subject=subject,
            body=body,
            chat=_chat_text(f"{subject}\n{body}", self._where(), key),
            payload={
                "idempotency_key": key,
                "subject": subject,
                "body": body,
                "interval_start": self.alerts[0].interval_start,
                "subscriptions": len(self.alerts),
                "worst": [alert.as_json() for alert in self.alerts[:WORST_IN_DIGEST]],
            },
            severity=min((alert.severity for alert in self.alerts), key=severity_rank),
            incident=key,
            links=self._where(),
        )

    def _numbers(self) -> str:
        words = Counter(_word(alert) for alert in self.alerts)
        return ", ".join(f"{number:,} {word}" for word, number in words.items())

    def _news(self) -> list[AlertFinding]:
        return [finding for alert in self.alerts for finding in alert.news]

    def _where(self) -> tuple[tuple[str, str], ...]:
        """The pages of the interval, without those of one subscription."""
        return tuple((name, target) for name, target in self.alerts[0].where if name != "report")


def _subject(alert: Alert) -> str:
    """Write one line: verdict, dispatcher, interval, and the numbers of news."""
    names = f"{_name(alert.topic)} {_name(alert.subscription)}"
    return printable(
        f"[dispatch-audit] {_word(alert)} {names}, {alert.interval}: {counted(alert.news)}",
        2 * LONGEST_ON_PAGES,
    )


def _word(alert: Alert) -> str:
    return "CLEAR" if alert.verdict == PASS else alert.verdict


def counted(news: Sequence[AlertFinding]) -> str:
    """Count the news by state: ``2 new, 1 clear``."""
    numbers = {state: sum(finding.state == state for finding in news) for state in STATES}
    return counts_by_name({state: number for state, number in numbers.items() if number})


def _body(alert: Alert, quoted: Sequence[AlertFinding], most_causes: int) -> str:
    """Write the plain text: what broke, how often, the root causes, the findings, where to look.

    ``quoted``: the news to write out; the others are counted. Of findings whose root cause is written out, only the subject
    follows. ``most_causes``: number of root causes.
    """
    lines = [
        f"Verdict: {alert.verdict}",
        f"Topic: {_name(alert.topic)}",
        f"Subscription: {_name(alert.subscription)} (cluster {_name(alert.cluster)})",
        f"Interval: {alert.interval} (UTC, from {alert.interval_start})",
        f"News: {counted(alert.news)}",
    ]
    if alert.team is not None:
        lines.insert(3, f"Team: {_name(alert.team)}")
    if alert.promises:
        lines += ["", "What broke" if alert.verdict == FAIL else "What could not be judged"]
        lines += [
            f"- {name}: {verdict}: {printable(why, _MAX_SENTENCE)}" for name, verdict, why in alert.promises
        ]
    if alert.counts:
        lines += ["", "How often", *(f"- {kind}: {count:,}" for kind, count in alert.counts.items())]
    present = [finding for finding in quoted if finding.state in (NEW, CHANGED)]
    cleared = [finding for finding in quoted if finding.state == CLEAR]
    causes = alert.root_causes
    if causes:
        lines += ["", "What happened"]
        lines += [f"- {printable(cause, _MAX_SENTENCE)}" for cause in causes[:most_causes]]
        if len(causes) > most_causes:
            lines.append(f"- ... and {len(causes) - most_causes:,} more: see the report")
    if alert.advice is not None:
        effects = f" ({alert.advice.effects})" if alert.advice.effects else ""
        lines += [
            "",
            "What would have prevented the order violations",
            f"- {printable(alert.advice.sentence + effects, _MAX_SENTENCE)}",
            f"  {printable(alert.advice.command, _MAX_SENTENCE)}",
        ]
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
    text = f"{alert.subject}\n{_body(alert, alert.quoted(MAX_QUOTED_IN_CHAT), MAX_CAUSES_IN_CHAT)}"
    return _chat_text(text, alert.where, alert.idempotency_key)


def _chat_text(text: str, where: Sequence[tuple[str, str]], key: str) -> str:
    """Put a text into a block of code, as far as chats take it, and its links below."""
    text = text.partition("\nWhere to look\n")[0]
    if len(text) > _MAX_CHAT_TEXT:
        text = text[: _MAX_CHAT_TEXT - 1].rsplit("\n", 1)[0] + "\n…"
    links = [
        f"<{target}|{name}>" if target.startswith(("http://", "https://")) else f"{name}: `{target}`"
        for name, target in ((name, _escaped(target)) for name, target in where)
    ]
    return f"{block(text)}\n{' · '.join(links)}\nidempotency key {key}"


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


def _as_json(finding: AlertFinding) -> dict[str, Any]:
    """Return a finding as JSON types; root causes stand in the alert, once each."""
    return {name: value for name, value in asdict(finding).items() if name != "root_cause"}


def _finding(finding: AlertFinding) -> list[str]:
    """Write a finding: what it is, in which sentence it is explained if no root cause is, and its positions."""
    doubt = ", uncertain" if finding.uncertain else ""
    often = "" if finding.state == CLEAR else f", {finding.count:,} times"
    lines = [
        f"- {finding.state}: {finding.kind} ({finding.severity}{doubt}), {_name(finding.subject)}{often}"
    ]
    if not finding.root_cause or finding.state == CLEAR:
        lines.append(f"  {printable(finding.explanation, _MAX_SENTENCE)}")
    if finding.positions:
        lines.append(f"  positions: {listed(map(_name, finding.positions), most=_MAX_POSITIONS)}")
    return lines
