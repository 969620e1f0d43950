"""Texts of an alert: plain text for mail and file, and a short form for chats. Names come from logs and stay text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dispatch_core.audit.sentences.lists import counts_by_name, listed
from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_expectations.alert_state import CHANGED, CLEAR, NEW, STATES
from dispatch_expectations.promise import FAIL, PASS

if TYPE_CHECKING:
    from dispatch_expectations.alert import Alert
    from dispatch_expectations.alert_standing import AlertFinding

#: Findings that a mail quotes, and a chat.
MAX_QUOTED: Final = 50
MAX_QUOTED_IN_CHAT: Final = 10
_MAX_SENTENCE: Final = 1000
_MAX_POSITIONS: Final = 10
#: Chats cut or split what is longer.
_MAX_CHAT_TEXT: Final = 3500


def subject(alert: Alert) -> str:
    """One line: what became of whom and when, and how much of it is news."""
    word = "CLEAR" if alert.verdict == PASS else alert.verdict
    names = f"{_name(alert.topic)} {_name(alert.subscription)}"
    return printable(
        f"[dispatch-audit] {word} {names}, {alert.interval}: {counted(alert.news)}", 2 * LONGEST_ON_PAGES
    )


def counted(news: Sequence[AlertFinding]) -> str:
    """``2 new, 1 clear``."""
    numbers = {state: sum(one.state == state for one in news) for state in STATES}
    return counts_by_name({state: number for state, number in numbers.items() if number})


def body(alert: Alert, quoted: Sequence[AlertFinding]) -> str:
    """Plain text for a person at night: what broke, how often, the telling cases, where to look.

    ``quoted``: the news that are told one by one; of the others there is a number.
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
    told = [one for one in quoted if one.state in (NEW, CHANGED)]
    gone = [one for one in quoted if one.state == CLEAR]
    if told:
        lines += ["", f"New or changed ({_of(len(told), alert.news, NEW, CHANGED)})"]
        lines += [text for one in told for text in _finding(one)]
    if gone:
        lines += ["", f"Clear ({_of(len(gone), alert.news, CLEAR)})"]
        lines += [text for one in gone for text in _finding(one)]
    if len(quoted) < len(alert.news):
        lines += ["", f"... and {len(alert.news) - len(quoted):,} more: see the report and the tables"]
    lines += ["", "Where to look", *(f"- {name}: {target}" for name, target in alert.where)]
    return "\n".join(lines) + "\n"


def chat(alert: Alert) -> str:
    """Text for a Slack-compatible webhook: everything that comes from a log stands in one block of code.

    In a block of code nobody is mentioned and nothing is formatted; ``& < >`` are written as Slack asks for.
    """
    text = f"{alert.subject}\n{body(alert, alert.quoted(MAX_QUOTED_IN_CHAT))}"
    text = text.partition("\nWhere to look\n")[0]
    if len(text) > _MAX_CHAT_TEXT:
        text = text[: _MAX_CHAT_TEXT - 1].rsplit("\n", 1)[0] + "\n…"
    links = [
        f"<{target}|{name}>" if target.startswith(("http://", "https://")) else f"{name}: `{target}`"
        for name, target in ((name, _escaped(target)) for name, target in alert.where)
    ]
    return f"{block(text)}\n{' · '.join(links)}\nidempotency key {alert.idempotency_key}"


def block(text: str) -> str:
    """``text`` as one block of code of a chat, which it cannot end."""
    inside = _escaped(text.replace("```", "'''"))
    return f"```\n{inside}\n```"


def _name(text: str) -> str:
    """A name from a log: it may try to forge a mail header."""
    return printable(text, LONGEST_ON_PAGES)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _of(shown: int, news: Sequence[AlertFinding], *states: str) -> str:
    total = sum(one.state in states for one in news)
    return f"{shown:,}" if shown == total else f"{shown:,} of {total:,}"


def _finding(one: AlertFinding) -> list[str]:
    doubt = ", uncertain" if one.uncertain else ""
    often = "" if one.state == CLEAR else f", {one.count:,} times"
    lines = [f"- {one.state}: {one.kind} ({one.severity}{doubt}), {_name(one.subject)}{often}"]
    lines.append(f"  {printable(one.explanation, _MAX_SENTENCE)}")
    if one.positions:
        lines.append(f"  positions: {listed(map(_name, one.positions), most=_MAX_POSITIONS)}")
    return lines
