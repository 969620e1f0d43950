"""Compile the data plane once and leave it in numba's cache: ``python -m dispatch_core.cli.warmup``.

Two processes compile in parallel and share the cache: one compiles the audit and the loops of the simulation, the other the
dispatchers and the replay. Then small logs are simulated, verified, replayed and audited under every ordering rule, with the
argument types of real use, so that later processes have nothing left to compile.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.batches import nulls
from dispatch_core.arrays.text_ids import warm_up as texts_warm_up
from dispatch_core.audit.deliveries.operations import ADDED, SENT
from dispatch_core.audit.deliveries.scan import warm_up as audit_warm_up
from dispatch_core.audit.waits.sampling import warm_up as waits_warm_up
from dispatch_core.broker import profiles
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.recording.log import DispatcherLog, dispatcher_logs
from dispatch_core.recording.schema import EVENTS, MESSAGES
from dispatch_core.replay.replay_log import replay
from dispatch_core.simulation.failover_run import FailoverRun
from dispatch_core.simulation.generate import header_of
from dispatch_core.simulation.key_shared_run import KeySharedRun
from dispatch_core.simulation.scenario import Scenario
from dispatch_core.simulation.sink import FileSink
from dispatch_core.simulation.synthetic import common, given_by
from dispatch_core.simulation.tables import Log
from dispatch_core.verify.without_trace.base import OperationBatch
from dispatch_core.verify.without_trace.key_shared import fold_of
from dispatch_core.verify.without_trace.possible_owners import Member
from dispatch_core.verify.without_trace.races import Racing

#: One scenario per ordering rule.
SCENARIOS: Final[tuple[dict[str, Any], ...]] = (
    {"broker_version": "4.2.4"},
    {"broker_version": "4.0.0-preview.1"},
    {"broker_version": "3.0.17"},
    {"subscription_type": "Failover"},
)


class _Tables:
    """A simulated log in memory."""

    def __init__(self) -> None:
        self._messages: list[pa.Table] = []
        self._events: list[pa.Table] = []

    def messages(self, table: pa.Table) -> None:
        """Append rows of ``MESSAGES``."""
        self._messages.append(_whole(table, MESSAGES))

    def events(self, table: pa.Table) -> None:
        """Append rows of ``EVENTS``."""
        self._events.append(_whole(table, EVENTS))

    def log(self) -> DispatcherLog:
        """The log that was appended."""
        (log,) = dispatcher_logs(pa.concat_tables(self._messages), pa.concat_tables(self._events))
        return log


def _whole(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with its missing columns added as nulls."""
    columns = [
        (table[field.name] if table[field.name].type == field.type else table[field.name].cast(field.type))
        if field.name in table.column_names
        else nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _run_of(scenario: Scenario, tables: _Tables) -> KeySharedRun | FailoverRun:
    profile, shared = scenario.profile_of(0), common(scenario)
    log = Log(
        topic=scenario.topic_of(0),
        header=header_of(scenario, 0, profile),
        first_ledger=1,
        ledger_step=1,
        mode=scenario.key_shared_mode,
        allow_out_of_order=scenario.allow_out_of_order,
        selector="",
        trace=scenario.trace,
        shows_hashes=not scenario.is_failover,
    )
    kind = FailoverRun if scenario.is_failover else KeySharedRun
    return kind(given_by(scenario, 0, shared), FileSink(log, shared.keys, tables))


def small(**wanted: Any) -> Scenario:
    """A small scenario that uses most features: redelivery requests, restarts, a crash, consumers with short queues."""
    return Scenario(
        **{
            "messages": 300,
            "rate": 1000,
            "keys": 40,
            "consumers": 3,
            "queue": 40,
            "churn": "rolling-restart",
            "crashing_consumers": 1,
            "nack_share": 0.05,
            **wanted,
        }
    )


def simulated(scenario: Scenario) -> DispatcherLog:
    """The log of one simulated dispatcher."""
    tables = _Tables()
    _run_of(scenario, tables).run()
    return tables.log()


def use_everything() -> None:
    """Simulate, verify, replay and audit a log under each ordering rule."""
    for wanted in SCENARIOS:
        for trace in (True, False):
            scenario = small(trace=trace, **wanted)
            day = datetime.fromtimestamp(scenario.start_us // 1_000_000, UTC)
            replay(simulated(scenario), interval_start=day, interval_end=day + timedelta(days=1))


# --- what each process compiles --------------------------------------------------------------------------------


def _simulations() -> None:
    """Compile the audit, and the loops of the simulation by calling them before their first event.

    The rules, which both the loop of Key_Shared and the dispatchers need, come last: by then the other process has compiled
    many of them.
    """
    audit_warm_up()
    texts_warm_up()
    for wanted in ({"subscription_type": "Failover"}, {"broker_version": "4.2.4"}):
        _run_of(small(**wanted), _Tables())._loop(0)


def _folds() -> None:
    """Compile the dispatchers and the replay of logs of level E."""
    for version in ("4.2.4", "4.0.0-preview.1"):
        _use_dispatcher(KeySharedDispatcher, version)
    _use_dispatcher(ClassicKeySharedDispatcher, "3.0.17")
    _use_dispatcher(SharedDispatcher, "4.2.4", "Shared")
    for kind in ("Key_Shared", "Failover"):
        fold_of(profiles.resolve("4.2.4", subscription_type=kind), "t", kind).feed(_tiny_batch())
    waits_warm_up()


def _use_dispatcher(
    dispatcher: type[KeySharedDispatcher | SharedDispatcher], version: str, kind: str = "Key_Shared"
) -> None:
    """Call every compiled function of one ordering rule: joins, a round, an ack, a redelivery, leaves."""
    profile = profiles.resolve(version, subscription_type=kind)
    core = dispatcher(profile, np.array([11858, 51461, 11858]), np.ones(3, np.int64), 2)
    for consumer in (1, 2):
        core.join(consumer, f"c{consumer}")
        if isinstance(core, KeySharedDispatcher):
            core.join_selector(consumer)
        core.flow(consumer, 10)
        core.flow_applied(consumer, 10)
    core.attempt_read()
    core.read_done("Normal", [0, 1, 2])
    core.finish_round(core.round("Normal", [0, 1, 2]), has_more=True)
    begun = core.begin_ack(0)
    if begun is not None:
        core.end_ack(begun.consumer, begun.messages)
        core.finish_ack(0, begun.consumer, 0)
    core.acknowledge(0)
    core.ack(2)
    holder = core.pending_ack_removed(1).consumer
    core.lower_for_redelivery(holder, core.add_requested(holder, [1]))
    core.flow_parked(holder)
    core.redeliver(holder, [])
    core.unblock(2)
    core.restore(core.save())
    core.leave(1)
    core.attempt_read()
    core.leave(2)
    core.check_invariants()


def _tiny_batch() -> OperationBatch:
    """A batch in which a consumer joins and is sent an entry."""
    nothing = np.empty(0, np.int64)
    return OperationBatch(
        dropped=0,
        hashes=np.array([11858]),
        num_messages=np.ones(1, np.int64),
        settled=nothing,
        stored_us=np.zeros(1, np.int64),
        op_code=np.array([ADDED, SENT], np.int8),
        op_consumer=np.zeros(2, np.int32),
        op_value=np.zeros(2, np.int64),
        op_seq=np.arange(1, 3),
        op_t_us=np.zeros(2, np.int64),
        op_start=np.array([0, 0, 1]),
        op_ordinals=np.zeros(1, np.int32),
        members={0: Member(1, "c")},
        ahead=Racing.none(),
    )


def _timed(part: Callable[[], None]) -> None:
    began, cpu = time.monotonic(), time.process_time()
    part()
    print(
        f"{part.__name__[1:]}: {time.monotonic() - began:.1f} s, {time.process_time() - cpu:.1f} s of processor time",
        file=sys.stderr,
    )


def main() -> None:
    """Compile everything and print the time that it took."""
    began = time.monotonic()
    parts = [
        multiprocessing.get_context("spawn").Process(target=_timed, args=(part,))
        for part in (_simulations, _folds)
    ]
    for process in parts:
        process.start()
    for process in parts:
        process.join()
    if any(process.exitcode for process in parts):
        raise SystemExit("the data plane could not be compiled: the traceback above says in which function")
    use_everything()
    print(f"data plane compiled in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
