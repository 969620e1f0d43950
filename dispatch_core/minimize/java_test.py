"""Write a schedule as a test for Pulsar's own test broker (TestNG, ``ProducerConsumerBase``).

A client cannot be told to grant a number of permits: it grants a full receiver queue, and again when it has received half of
it. So a consumer's queue has the size of its first permits, it is paused until the log has them, and later permits come from
what it receives. Consumers that leave at the end of the log stay, to receive what is left.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Final

from dispatch_core.audit.catalogue import COMPLETENESS, DUPLICATE_DELIVERY, KINDS, PER_KEY_ORDER
from dispatch_core.minimize.same_finding import Finding
from dispatch_core.minimize.schedule import Entry, Schedule, Step, text_of

_TEMPLATE: Final = "ReproduceTest.java.template"
_INDENT: Final = " " * 12
#: Promise → when the test fails, and what it asserts at its end.
_ASSERTED: Final = {
    PER_KEY_ORDER: (
        "a message overtakes another of its key",
        'assertEquals(outOfOrder, List.of(), "out of order")',
    ),
    DUPLICATE_DELIVERY: (
        "a message comes again without a reason",
        'assertEquals(duplicates, List.of(), "delivered again")',
    ),
    COMPLETENESS: ("a message never comes", 'assertEquals(neverReceived(), Set.of(), "never received")'),
}
_DEFAULT_QUEUE: Final = 1000


def class_name(finding: Finding) -> str:
    """Return the name of the test's class.

    >>> from types import SimpleNamespace
    >>> class_name(SimpleNamespace(kind="stuck_key"))
    'StuckKeyTest'
    """
    return "".join(word.capitalize() for word in finding.kind.split("_")) + "Test"


def java_test(schedule: Schedule, finding: Finding) -> str:
    """Return the source of the test."""
    promise = KINDS[finding.kind].promise
    asserted = [_ASSERTED[promise]] if promise in _ASSERTED else [*_ASSERTED.values()]
    # A backslash in a comment may begin a Unicode escape, two of them do not.
    about = textwrap.wrap(f"{finding.kind}: {finding.explanation}".replace("\\", "\\\\"), 118)
    settings = [
        f"        settings.put({_text(name)}, {_text(text_of(value))});"
        for name, value in sorted(schedule.settings.items())
    ]
    parts = {
        "ABOUT": "\n".join(f" * {line.replace('*/', '* /')}" for line in about),
        "FAILS_WHERE": ", or ".join(when for when, _ in asserted),
        "CLASS": class_name(finding),
        "TYPE": schedule.subscription_type,
        "SETTINGS": "\n".join(settings),
        "STEPS": "\n".join(f"{_INDENT}{line}" for line in _lines(schedule)),
        "ASSERTIONS": "\n".join(f"        {assertion};" for _, assertion in asserted),
        "OUT_OF_ORDER": str(any(step.out_of_order for step in schedule.steps)).lower(),
    }
    text = resources.files("dispatch_core.minimize").joinpath(_TEMPLATE).read_text()
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _lines(schedule: Schedule) -> Iterator[str]:
    queues = _first_permits(schedule)
    granted: set[str] = set()
    last = max((number for number, step in enumerate(schedule.steps) if step.what != "leave"), default=-1)
    for number, step in enumerate(schedule.steps[: last + 1]):
        who = _text(step.consumer)
        if step.what == "publish":
            for entry in (schedule.entries[at] for at in step.entries):
                yield f"publish({_producer(entry)}, {entry.number}, {_key(entry)}, {entry.messages}); // {entry.position}"
        elif step.what == "join":
            ranges = "".join(f", Range.of({start}, {end})" for start, end in step.ranges)
            queue = queues.get(number, _DEFAULT_QUEUE)
            yield f"join({who}, {_text(step.name or step.consumer)}, {queue}, {step.priority_level}{ranges});"
            granted.discard(step.consumer)
        elif step.what == "permits" and step.consumer not in granted:
            granted.add(step.consumer)
            yield f"grant({who});"
        elif step.what == "receive":
            yield f"receive({who}{_named(schedule, step)});"
        elif step.what == "ack":
            yield f"acknowledge({who}, {str(step.cumulative).lower()}{_named(schedule, step)});"
        elif step.what == "nack":
            method = "requestAgain" if step.entries else "requestAllAgain"
            yield f"{method}({who}{_named(schedule, step)});"
        elif step.what == "leave":
            yield f"leave({who});"


def _first_permits(schedule: Schedule) -> Mapping[int, int]:
    """Return the first permits of each join, by the number of its step."""
    joined: dict[str, int] = {}
    first: dict[int, int] = {}
    for number, step in enumerate(schedule.steps):
        if step.what == "join":
            joined[step.consumer] = number
        elif step.what == "permits" and step.consumer in joined:
            first[joined.pop(step.consumer)] = step.permits
    return first


def _producer(entry: Entry) -> str:
    return "producer" if entry.messages == 1 else "batching"


def _key(entry: Entry) -> str:
    return "null" if entry.key is None else f"key({_text(base64.b64encode(entry.key).decode())})"


def _named(schedule: Schedule, step: Step) -> str:
    """Return the names of the messages of a step's entries, as further arguments."""
    parts = step.parts or ((),) * len(step.entries)
    names = [
        f"{number}.{index}"
        for number, part in zip(step.entries, parts, strict=True)
        for index in part or range(schedule.entries[number].messages)
    ]
    if step.cumulative:
        names = names[-1:]
    return "".join(f", {_text(name)}" for name in names)


def _text(value: str) -> str:
    """Return a Java string."""
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if " " <= character <= "~":
        return character
    if character < " ":
        # A \u escape of a control character is one itself before the compiler looks for strings.
        return f"\\{ord(character):03o}"
    return "".join(f"\\u{unit:04x}" for unit in _units(character))


def _units(character: str) -> Iterator[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        yield int.from_bytes(encoded[at : at + 2], "big")
