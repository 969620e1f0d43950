"""Verify one dispatcher's log: pick the driver for its profile, feed it, say what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import ProfileError, UnsupportedRuleError
from dispatch_core.profiles import Dispatcher, Profile, partition_index, resolve
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.tables import NO_TRACE
from dispatch_core.verify.inputs import Entries, Line, lines
from dispatch_core.verify.key_shared import KeySharedVerifier
from dispatch_core.verify.single_active import SingleActiveVerifier
from dispatch_core.verify.tally import Tally

Verifier = KeySharedVerifier | SingleActiveVerifier


@dataclass(slots=True)
class Verification:
    """What verifying one log gave. ``not_judged``: why nothing was compared; then the tally is empty."""

    log: DispatcherLog
    profile: Profile | None
    tally: Tally = field(default_factory=Tally)
    not_judged: str | None = None

    def as_json(self) -> dict[str, Any]:
        """One object of ``dispatch-audit verify --json``."""
        result: dict[str, Any] = {
            "recording": self.log.recording,
            "topic": self.log.topic,
            "subscription": self.log.subscription,
            "broker_version": self.log.header.get("broker_version"),
            **self.tally.as_json(),
        }
        if self.not_judged is not None:
            result["not_judged"] = self.not_judged
        return result


def profile_of(log: DispatcherLog, broker_version: str | None = None) -> Profile:
    """The profile a log's header and first consumer call for. Raises ``ProfileError``."""
    version = broker_version or log.header.get("broker_version")
    if version is None:
        raise ProfileError(
            f"{log.recording or log.topic}: the log's header names no broker_version: give one with --broker-version"
        )
    added = log.events.filter(_kind_is(log, "consumer_added")).slice(0, 1).to_pylist()
    first = added[0] if added else {}
    subscription_type = log.header.get("subscription_type") or (
        "Key_Shared" if first.get("key_shared_mode") else "Shared"
    )
    return resolve(
        version,
        log.header.get("config"),
        subscription_type=subscription_type,
        partition_index=partition_index(log.header),
        key_shared_mode=first.get("key_shared_mode") or "AUTO_SPLIT",
        allow_out_of_order=bool(first.get("key_shared_allow_out_of_order")),
    )


def verify(
    log: DispatcherLog,
    *,
    broker_version: str | None = None,
    watch: Callable[[Line, Verifier], None] | None = None,
) -> Verification:
    """Compare every decision of ``log`` with the core's.

    ``watch`` is called after each line with the line and the driver, for those who derive more from the same fold.
    Never raises for what a log may hold: an unusable version or a rule that is not replayed becomes ``not_judged``.
    """
    try:
        profile = profile_of(log, broker_version)
    except ProfileError as error:
        return Verification(log, None, not_judged=str(error))
    if not _is_trace(log):
        return Verification(
            log,
            profile,
            not_judged=NO_TRACE,
        )
    try:
        driver, trace = _driver(log, profile)
    except UnsupportedRuleError as error:
        return Verification(log, profile, not_judged=str(error))
    for line in trace:
        driver.feed(line)
        if watch is not None:
            watch(line, driver)
    return Verification(log, profile, driver.finish())


def _driver(log: DispatcherLog, profile: Profile) -> tuple[Verifier, list[Line]]:
    if profile.dispatcher is Dispatcher.SHARED:
        raise UnsupportedRuleError(
            f"{profile.name}: Shared subscriptions are audited for duplicates and loss only, not replayed"
        )
    entries = Entries(log.messages)
    trace = list(lines(log, entries))
    driver = SingleActiveVerifier if profile.dispatcher is Dispatcher.SINGLE_ACTIVE else KeySharedVerifier
    return driver(log, profile, entries, trace), trace


def _is_trace(log: DispatcherLog) -> bool:
    return log.events.filter(_kind_is(log, "read_done")).num_rows > 0


def _kind_is(log: DispatcherLog, kind: str) -> pa.ChunkedArray:
    return pc.equal(log.events["kind"], kind)
