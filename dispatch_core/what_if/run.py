"""Simulate a recorded load under given rules; the result is a log of level E."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.positions import locate
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.broker.profiles import Dispatcher, Profile, is_non_persistent
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.schema import EVENTS
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.dispatcher_run import EVEN, Delays, Given, Unevenness
from dispatch_core.simulation.failover_run import FailoverRun
from dispatch_core.simulation.key_shared_run import KeySharedRun
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.shared_run import SharedRun
from dispatch_core.simulation.tables import Client, Log, event_table
from dispatch_core.simulation.world import Lines
from dispatch_core.what_if.broker_delays import Paces, most_likely, of_release, usual
from dispatch_core.what_if.client_changes import fitted
from dispatch_core.what_if.client_ranges import with_client_ranges
from dispatch_core.what_if.clients import Deliveries, RecordedClients, RecordedPublishing, changes_of
from dispatch_core.what_if.plugged_run import PluggedRun, plugged_run
from dispatch_core.what_if.proposals.catalogue import Proposal
from dispatch_core.what_if.proposals.runs import figures_of, run_of
from dispatch_core.what_if.recorded import RecordedLoad
from dispatch_core.what_if.rules import NO_CUSTOM, CustomRules

Ints = npt.NDArray[np.int64]

#: Standard deviations of logarithms, as between recorded brokers of one release: of all delays together, and of each.
_TOGETHER: Final = 0.5
_EACH: Final = 0.4
#: The same between the hops of one broker, and between its reads.
_OF_HOPS: Final = 1.1
_OF_READS: Final = 0.4
#: Some reads stall. In recorded traces a stall is as long whether a read takes 0.1 ms (replays from the broker's cache) or
#: 3 ms (from the storage): share of reads, median in microseconds, standard deviation of the logarithm.
_STALLING: Final = 0.1
_STALL_US: Final = 2_300
_OF_STALLS: Final = 1.3
#: Samples of single hops and reads.
_SAMPLES: Final = 1 << 12


def simulate(
    load: RecordedLoad,
    profile: Profile,
    *,
    seed: int = 0,
    deliveries: Deliveries | None = None,
    timers: Mapping[str, object] | None = None,
    proposal: Proposal | None = None,
    custom: CustomRules = NO_CUSTOM,
) -> DispatcherLog:
    """Simulate ``load`` under the rules of ``profile``.

    Args:
        load: clients and messages of a recorded log.
        profile: the rules.
        seed: 0 = the delays that the recorded broker is likely to have had; other seeds vary them, and single ones.
        deliveries: the result of ``deliveries_of(load)``, if several simulations share it.
        timers: settings of ``broker.settings.TIMERS`` that replace the recorded ones.
        proposal: rules on top of these; the header's ``figures`` say what they did.
        custom: rules that no release has, on top of ``profile``; the header's ``notes`` say what they did.

    Raises:
        UnsupportedRuleError: these rules cannot be simulated with these clients.
    """
    deliveries = deliveries or deliveries_of(load)
    load = load if custom.client_ranges is not None else fitted(load, profile)
    if timers:
        load = replace(load, header={**load.header, "config": {**recorded_settings(load), **timers}})
    uneven = _uneven(seed)
    paces: Paces = ()
    if deliveries is None:
        delays = _varied(usual(profile), seed)
        stored_us = load.stored_us
    else:
        recorded = load.profile or profile
        delays = _varied(of_release(deliveries.delays, recorded, profile), seed)
        stored_us = deliveries.stored_us
        paces = tuple(
            replace(pace, delays=_varied(of_release(pace.delays, recorded, profile), seed))
            for pace in deliveries.paces
        )
    return _simulate(
        load,
        profile,
        deliveries,
        delays,
        stored_us,
        paces,
        uneven=uneven,
        proposal=proposal,
        custom=custom,
    )


def deliveries_of(load: RecordedLoad) -> Deliveries | None:
    """Simulate ``load`` under the recorded rules, with the delays that its acknowledgements show (``broker_delays``).

    Of the ``sent`` lines of the log only times are read. None: the recorded rules are not known or cannot be simulated.
    """
    profile = load.profile
    if profile is None:
        return None

    def sent(delays: Delays, stored_us: Ints, paces: Paces) -> Deliveries:
        log = _simulate(load, profile, None, delays, stored_us, paces)
        lines = log.events.filter(pc.equal(log.events["kind"], "sent"))
        listed = lines["positions"].combine_chunks()
        row = np.repeat(np.arange(len(listed)), np.asarray(pc.list_value_length(listed)))
        entry = _ordinals(load, pc.list_flatten(listed))
        at_us, consumer = (lines[name].to_numpy()[row] for name in ("t_us", "consumer"))
        return Deliveries(at_us, consumer, entry, delays, stored_us, paces)

    try:
        return most_likely(load, profile, sent)
    except UnsupportedRuleError:
        return None


def _ordinals(load: RecordedLoad, positions: pa.StructArray) -> Ints:
    ledger, entry = (load.messages[name].to_numpy() for name in ("ledger_id", "entry_id"))
    wanted = (np.asarray(positions.field(name), np.int64) for name in ("ledger_id", "entry_id"))
    return locate(ledger, entry, *wanted).astype(np.int64)


def _simulate(
    load: RecordedLoad,
    profile: Profile,
    deliveries: Deliveries | None,
    delays: Delays,
    stored_us: Ints,
    paces: Paces = (),
    *,
    uneven: Unevenness = EVEN,
    proposal: Proposal | None = None,
    custom: CustomRules = NO_CUSTOM,
) -> DispatcherLog:
    if is_non_persistent(load.topic):
        raise UnsupportedRuleError(
            f"{load.topic}: a non-persistent topic is not simulated: what it would have dropped under other rules depends "
            "on connections, which no log shows"
        )
    single = profile.dispatcher is Dispatcher.SINGLE_ACTIVE
    header = {
        **load.header,
        "format": "pulsar-consumer-events",
        "broker_version": profile.broker_version,
        "config": {**recorded_settings(load), **profile.settings},
        "simulated": True,
    }
    log = RecordedLog(
        topic=load.topic,
        header=header,
        first_ledger=0,
        ledger_step=0,
        mode=profile.key_shared_mode,
        allow_out_of_order=profile.allow_out_of_order,
        selector="",
        trace=False,
        shows_hashes=False,
        cluster=load.cluster,
        subscription=load.subscription,
        ledger_id=load.messages["ledger_id"].to_numpy(),
        entry_id=load.messages["entry_id"].to_numpy(),
        sizes=load.num_messages,
    )
    sink = MemorySink(log)
    connections = load
    notes = []
    if custom.client_ranges is not None:
        connections, stops = with_client_ranges(load, custom.client_ranges)
        notes.append(
            f"{counted(stops, 'time', 'times')} a node was added or removed, and all were stopped for "
            f"{duration(custom.client_ranges.stop_us)}"
        )
    given = Given(
        profile=profile,
        topic=load.topic,
        partition_index=load.partition_index,
        changes=changes_of(connections),
        publishing=RecordedPublishing(load, stored_us, fallback=profile.fallback_key),
        clients=RecordedClients(load, deliveries, connections),
        exclusive=load.subscription_type == "Exclusive",
        until_us=load.until_us,
        delays=delays,
        timers=recorded_settings(load),
        paces=paces,
        uneven=uneven,
        unacked_limits=load.unacked_limits,
    )
    dispatcher: FailoverRun | KeySharedRun | SharedRun
    if single:
        dispatcher = FailoverRun(given, sink)
    elif profile.is_shared:
        dispatcher = SharedRun(given, sink)
    elif custom.plugged:
        dispatcher = plugged_run(given, sink, custom.plugged)
    else:
        dispatcher = run_of(proposal, given, sink, load, deliveries)
    dispatcher.run()
    if isinstance(dispatcher, PluggedRun):
        notes += dispatcher.notes()
    if notes:
        header["notes"] = notes
    events = _of_incarnation(sink.events(), load)
    if proposal is not None:
        acks = events.filter(pc.equal(events["kind"], "ack"))["positions"].combine_chunks()
        header["figures"] = figures_of(proposal, dispatcher, _ordinals(load, pc.list_flatten(acks)), load)
    return DispatcherLog(
        recording=load.recording,
        cluster=load.cluster,
        topic=load.topic,
        subscription=load.subscription,
        broker=load.broker,
        incarnation=load.incarnation,
        header=header,
        messages=load.messages,
        events=events,
    )


def recorded_settings(load: RecordedLoad) -> Mapping[str, Any]:
    """The settings in the log's header."""
    config = load.header.get("config")
    return config if isinstance(config, Mapping) else {}


def _of_incarnation(events: pa.Table, load: RecordedLoad) -> pa.Table:
    columns = {
        "broker": pa.array([load.broker] * len(events), pa.string()),
        "incarnation": pa.array(np.full(len(events), load.incarnation)),
    }
    return pa.table([columns.get(column.name, events[column.name]) for column in EVENTS], schema=EVENTS)


def _varied(delays: Delays, seed: int) -> Delays:
    """The delays of another broker: all of them longer or shorter, and each by a factor of its own; unchanged for seed 0."""
    if not seed:
        return delays
    random = np.random.default_rng(seed)
    names = [delay.name for delay in fields(delays)]
    factors = np.exp(random.normal(0, _TOGETHER) + random.normal(0, _EACH, len(names)))
    return Delays(
        **{
            name: max(int(getattr(delays, name) * factor), 1)
            for name, factor in zip(names, factors, strict=True)
        }
    )


def _uneven(seed: int) -> Unevenness:
    """Draw by how much single hops, reads and writes differ from the broker's delays; not at all for seed 0."""
    if not seed:
        return EVEN
    random = np.random.default_rng((seed, 1))
    stalls = random.random(_SAMPLES) < _STALLING
    reads = np.exp(random.normal(0, _OF_READS, _SAMPLES))
    stalls_us = np.where(stalls, _STALL_US * np.exp(random.normal(0, _OF_STALLS, _SAMPLES)), 0)
    hops = np.exp(random.normal(0, _OF_HOPS, _SAMPLES))
    of_reads, of_hops = ((w_.EVEN * factors).astype(np.int64) for factors in (reads, hops))
    return Unevenness(of_reads, of_hops, stalls_us.astype(np.int64))


@dataclass(slots=True)
class RecordedLog(Log):
    """A log whose positions are those of recorded messages."""

    ledger_id: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    entry_id: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def ledgers(self, numbers: Ints) -> tuple[Ints, Ints]:
        """See ``Log``."""
        return self.ledger_id[numbers], self.entry_id[numbers]

    def batch_sizes(self, numbers: Ints) -> Ints:
        """See ``Log``."""
        return self.sizes[numbers]


class MemorySink:
    """Keeps the events of a simulation."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tables: list[pa.Table] = []
        self._words: list[Sequence[int]] = [()]

    def published(self, published: Published, hashes: npt.NDArray[np.int64]) -> None:
        """See ``Sink``: the messages are known."""

    def client(self, number: int, client: Client) -> None:
        """See ``Sink``."""
        self._log.clients[number] = client

    def noted(self, words: Sequence[int]) -> int:
        """See ``Sink``."""
        if not words:
            return 0
        self._words.append(words)
        return len(self._words) - 1

    def lines(self, lines: Lines) -> None:
        """See ``Sink``."""
        count = int(lines.n[0])
        if not count:
            return
        table = event_table(self._log, lines)
        kind, details = lines.kind[:count], lines.a[:count]
        table = self._with_acks(table, kind, details)
        at_e = pa.array((kind < kinds.FIRST_OF_TRACE) | (kind == kinds.END))
        self._tables.append(table.filter(at_e))

    def events(self) -> pa.Table:
        """All lines, as rows of ``EVENTS``."""
        if not self._tables:
            return EVENTS.empty_table()
        table = pa.concat_tables(self._tables)
        columns: Mapping[str, Any] = {name: table[name] for name in table.column_names}
        return pa.table(
            [
                columns[column.name].cast(column.type)
                if column.name in columns
                else pa.nulls(len(table), column.type)
                for column in EVENTS
            ],
            schema=EVENTS,
        )

    def _with_acks(self, table: pa.Table, kind: npt.NDArray[np.uint8], details: Ints) -> pa.Table:
        """With the acks that are not individual ones of whole entries."""
        is_ack = kind == kinds.ACK
        cumulative = is_ack & (details & 1 == 1)
        types = pa.DictionaryArray.from_arrays(
            pa.array(cumulative.astype(np.int8), mask=~is_ack), ["Individual", "Cumulative"]
        )
        table = table.set_column(table.column_names.index("ack_type"), "ack_type", types)
        noted = np.where(is_ack, details >> 1, 0)
        sets = [[list(self._words[at])] if at else None for at in noted.tolist()] if noted.any() else None
        kind_of = EVENTS.field("ack_sets").type
        column = pa.nulls(len(table), kind_of) if sets is None else pa.array(sets, kind_of)
        return table.append_column("ack_sets", column)
