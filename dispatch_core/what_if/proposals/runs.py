"""Go from a proposal to the run of a dispatcher under it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.broker.state import MARK_DELETE
from dispatch_core.simulation.dispatcher_run import DispatcherRun, Given
from dispatch_core.simulation.key_shared_run import KeySharedRun
from dispatch_core.simulation.sink import Sink
from dispatch_core.what_if.clients import Deliveries
from dispatch_core.what_if.proposals.catalogue import Proposal
from dispatch_core.what_if.proposals.entry_buckets_run import EntryBucketRun
from dispatch_core.what_if.proposals.hot_key_overflow_run import HotKeyOverflowRun
from dispatch_core.what_if.proposals.retrying_hashes_run import RetryingHashesRun, nack_delay_us
from dispatch_core.what_if.proposals.stepped_run import SteppedRun
from dispatch_core.what_if.recorded import RecordedLoad

Ints = npt.NDArray[np.int64]


def run_of(
    proposal: Proposal | None, given: Given, sink: Sink, load: RecordedLoad, deliveries: Deliveries | None
) -> KeySharedRun:
    """Make the run of a Key_Shared dispatcher under a proposal; None, and one of settings alone: under the release's rules.

    ``deliveries``: of the load under the recorded rules, as far as known. Raises ``UnsupportedRuleError`` for rules that the
    proposal does not build on.
    """
    if proposal is None:
        return KeySharedRun(given, sink)
    proposal.check(given.profile)
    if proposal.buckets:
        return EntryBucketRun(given, sink, proposal.buckets)
    if proposal.name == "pip-474":
        return HotKeyOverflowRun(given, sink)
    if proposal.name == "pip-493":
        return RetryingHashesRun(given, sink, load, nack_delay_us(load, deliveries))
    return KeySharedRun(given, sink)


def figures_of(
    proposal: Proposal, run: DispatcherRun, acknowledged: Ints, load: RecordedLoad
) -> dict[str, float]:
    """Say what a run under a proposal came to, by name. ``acknowledged``: entries in the order of their acknowledgements.

    For PIP-474 and its alternative: the acknowledged ranges that the cursor has to keep apart, and to persist
    (``managedLedgerMaxUnackedRangesToPersist``).
    """
    own = run.figures(acknowledged, load) if isinstance(run, SteppedRun) else {}
    if not proposal.name.startswith("pip-474"):
        return own
    st = run.state
    deleted = st.deleted[int(st.s[MARK_DELETE]) + 1 :].astype(np.int8)
    return {**own, "acknowledged ranges in the end": int((np.diff(deleted, prepend=0) == 1).sum())}


def assumed_by(proposal: Proposal, load: RecordedLoad, deliveries: Deliveries | None) -> tuple[str, ...]:
    """Return what is assumed for a proposal and this load, as sentences."""
    delay = duration(nack_delay_us(load, deliveries)) if proposal.name == "pip-493" else ""
    return tuple(text.format(buckets=proposal.buckets, delay=delay) for text in proposal.assumptions)
