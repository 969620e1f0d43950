"""Write a schedule as a Python script over ``Walk``, and say whether the rules send what the broker sent.

The script is played as it is written: a ``check`` in it compares what the rules send from there on with what the log says.
Where they differ, either the broker broke its rules, or what it did depends on threads and times that a walk does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.walk import Walk
from dispatch_core.errors import DispatchAuditError
from dispatch_core.minimize.schedule import NoScheduleError, Schedule, Step

_LEDGER: Final = 1
_WALKED: Final = (
    Dispatcher.KEY_SHARED,
    Dispatcher.KEY_SHARED_CLASSIC,
    Dispatcher.SHARED,
    Dispatcher.SHARED_CLASSIC,
)
_HEAD: Final = '''"""{about}
"""

from dispatch_core.broker import profiles
from dispatch_core.broker.walk import Walk

profile = profiles.resolve(
    {broker_version!r},
    {settings!r},
    subscription_type={subscription_type!r},
    key_shared_mode={mode!r},
    allow_out_of_order={out_of_order!r},
)


def check(sent, recorded):
    """Compare what the rules send with what the log says."""
    print(sent, "as recorded" if sent == recorded else f"but recorded was {{recorded}}")


walk = Walk(profile, {keys!r}, stored=0, messages={messages!r})
'''


@dataclass(slots=True)
class WalkScript:
    """The script, how many of its checks come out as recorded, and the first that does not."""

    text: str
    checks: int = 0
    as_recorded: int = 0
    first_other: str | None = None


def walk_script(schedule: Schedule, profile: Profile, about: str) -> WalkScript:
    """Write the script and play it. Raises ``NoScheduleError`` where no walk can be made of the schedule."""
    if profile.dispatcher not in _WALKED:
        raise NoScheduleError(
            f"there is no walk of a subscription of type {schedule.subscription_type}: only Key_Shared and Shared have one"
        )
    joins = [step for step in schedule.steps if step.what == "join"]
    keys: list[str | bytes] = [_shown_key(entry.hashed) for entry in schedule.entries]
    messages = [entry.messages for entry in schedule.entries]
    text = _HEAD.format(
        about=about.replace("\\", "\\\\").replace('"""', "'''"),
        broker_version=schedule.broker_version,
        settings=schedule.settings,
        subscription_type=schedule.subscription_type,
        mode="STICKY" if any(step.ranges for step in joins) else "AUTO_SPLIT",
        out_of_order=any(step.out_of_order for step in joins),
        keys=keys,
        messages=messages,
    )
    script = WalkScript(text)
    player = _Player(Walk(profile, keys, stored=0, messages=messages), script)
    for step in _merged(schedule.steps):
        player.perform(step)
    player.end()
    return script


def _shown_key(key: bytes) -> str | bytes:
    """Return a key as text where it is text."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _merged(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield the steps; permits that come right behind their consumer's join are part of it."""
    joined: Step | None = None
    for step in steps:
        if joined is not None:
            if step.what == "permits" and step.consumer == joined.consumer:
                yield replace(joined, permits=step.permits)
                joined = None
                continue
            yield joined
            joined = None
        if step.what == "join":
            joined = step
        else:
            yield step
    if joined is not None:
        yield joined


@dataclass(slots=True)
class _Player:
    walk: Walk
    script: WalkScript
    recorded: dict[str, list[str]] = field(default_factory=dict)

    def perform(self, step: Step) -> None:
        """Do a step; deliveries are collected, and compared before the next step of another kind."""
        if step.what == "receive":
            self.recorded.setdefault(step.consumer, []).extend(_positions(step))
            return
        if self.recorded:
            self._check()
        if step.what == "nack" and not step.entries:
            step = replace(step, entries=tuple(_number(p) for p in self.walk.pending(step.consumer)))
        for method, given, named in _calls(step):
            self._call(method, *given, **named)

    def end(self) -> None:
        """Compare what is sent at the end, and show what is left."""
        self._check()
        self.script.text += 'print("pending:", {name: walk.pending(name) for name in walk.connected()})\n'
        self.script.text += 'print("in the replay set:", walk.in_replay(), "draining:", walk.draining())\n'

    def _call(self, method: str, *given: Any, **named: Any) -> None:
        arguments = [repr(value) for value in given] + [f"{name}={value!r}" for name, value in named.items()]
        self.script.text += f"walk.{method}({', '.join(arguments)})\n"
        try:
            getattr(self.walk, method)(*given, **named)
        except DispatchAuditError as error:
            raise NoScheduleError(f"there is no walk of this log: walk.{method}: {error}") from error

    def _check(self) -> None:
        recorded, self.recorded = self.recorded, {}
        self.script.text += f"check(walk.run(), {recorded!r})\n"
        sent = self.walk.run()
        self.script.checks += 1
        if sent == recorded:
            self.script.as_recorded += 1
        elif self.script.first_other is None:
            self.script.first_other = (
                f"recorded was {recorded or 'nothing'}, and the rules send {sent or 'nothing'}"
            )


def _calls(step: Step) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Yield the calls of a step: method, arguments, named arguments."""
    if step.what == "publish":
        yield "store", (len(step.entries),), {}
    elif step.what == "join":
        named = {"permits": step.permits, "ranges": [*step.ranges], "priority_level": step.priority_level}
        yield "join", (step.consumer,), {name: value for name, value in named.items() if value}
    elif step.what == "leave":
        yield "leave", (step.consumer,), {}
    elif step.what == "permits":
        yield "give", (step.consumer, step.permits), {}
    elif step.what == "ack":
        if any(step.parts) or step.cumulative:
            raise NoScheduleError(
                "there is no walk of acknowledgements of parts of a batch, or cumulative ones"
            )
        yield "ack", _positions(step), {}
    elif step.what == "nack":
        yield "nack", (step.consumer, *_positions(step)), {}


def _positions(step: Step) -> tuple[str, ...]:
    return tuple(f"{_LEDGER}:{number}" for number in step.entries)


def _number(position: str) -> int:
    return int(position.partition(":")[2])
