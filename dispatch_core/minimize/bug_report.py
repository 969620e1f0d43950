"""Write the text of a bug report about a minimized log, for an issue in Pulsar's tracker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.sentences.lists import plural
from dispatch_core.audit.sentences.names import shown
from dispatch_core.diagnose.known_issues import known_issues
from dispatch_core.minimize.same_finding import Finding
from dispatch_core.minimize.schedule import Schedule, Step, text_of

_PROMISED: Final = {
    "per_key_order": "Messages of one key are delivered in order, and to one consumer at a time.",
    "duplicate_delivery": "A message comes again only after a redelivery request, a disconnect or a move of the cursor.",
    "completeness": "Every message that a consumer has asked for, and that nothing holds back, is delivered.",
    "conformance": "The dispatcher decides as the rules of its release say.",
    "input_quality": "The log says only what a broker can have done.",
}


def bug_report(
    schedule: Schedule | None,
    finding: Finding,
    *,
    lines: Sequence[str],
    files: Sequence[tuple[str, str]],
    facts: str,
) -> str:
    """Return the text, in Markdown.

    ``lines``: of the minimized log as JSON. ``files``: names of the files beside it, and what each is. ``facts``: release
    and rules in words. ``schedule``: ``None`` where the log has steps that are none of a client.
    """
    parts = [f"# {finding.kind}: {shown(finding.subject)}", "", *_environment(schedule, facts)]
    parts += [
        "",
        "## Steps",
        "",
        *(_steps(schedule) if schedule is not None else ["They are the lines of the log below."]),
    ]
    parts += ["", "## Expected", "", _PROMISED[KINDS[finding.kind].promise]]
    parts += ["", "## Actual", "", finding.explanation]
    parts += ["", "## How to reproduce", "", *(f"- `{name}`: {what}" for name, what in files)]
    parts += ["", "## The log", "", "```", *lines, "```", *_known(finding), ""]
    return "\n".join(parts)


def _environment(schedule: Schedule | None, facts: str) -> Iterator[str]:
    yield "## Versions and settings"
    yield ""
    yield facts
    if schedule is not None and schedule.settings:
        yield ""
        yield from (f"- `{name}={text_of(value)}`" for name, value in sorted(schedule.settings.items()))
    yield ""
    yield "Attach the output of `pulsar-admin topics stats` and `topics stats-internal` of the topic, if you have it."


def _steps(schedule: Schedule) -> Iterator[str]:
    sentences = [sentence for step in schedule.steps if (sentence := _sentence(schedule, step))]
    yield from (f"{number}. {sentence}" for number, sentence in enumerate(sentences, 1))


def _sentence(schedule: Schedule, step: Step) -> str:
    who = shown(step.consumer)
    entries = ", ".join(schedule.entries[at].position for at in step.entries)
    if step.what == "publish":
        return "Published: " + ", ".join(
            f"{entry.position} ({_key_called(entry.key)}{_messages_called(entry.messages)})"
            for entry in (schedule.entries[at] for at in step.entries)
        )
    if step.what == "join":
        level = f", priority level {step.priority_level}" if step.priority_level else ""
        ranges = f", ranges {', '.join(f'{a} to {b}' for a, b in step.ranges)}" if step.ranges else ""
        return f"{who} connects{level}{ranges}."
    if step.what == "permits":
        return f"{who} grants {step.permits} {plural(step.permits, 'permit', 'permits')}."
    if step.what == "receive":
        return f"{who} is sent {entries}."
    if step.what == "ack":
        how = "cumulatively " if step.cumulative else "messages of " if any(step.parts) else ""
        return f"{who} acknowledges {how}{entries}."
    if step.what == "nack":
        return f"{who} requests redelivery of {entries or 'all that it holds'}."
    return f"{who} disconnects."


def _key_called(key: bytes | None) -> str:
    if key is None:
        return "no key"
    try:
        return f"key {shown(key.decode())}"
    except UnicodeDecodeError:
        return f"key 0x{key.hex()}"


def _messages_called(messages: int) -> str:
    return "" if messages == 1 else f", a batch of {messages}"


def _known(finding: Finding) -> Iterator[str]:
    """Name the known issues that the explanation mentions."""
    found = [
        issue
        for issue in known_issues()
        if any(f"/{number}" in link for number in finding.issues for link in issue.links)
    ]
    if found:
        yield ""
        yield "## Known issues that look like it"
        yield ""
        yield from (f"- [{issue.title}]({issue.links[0]}); mended in: {issue.mended_text}" for issue in found)
