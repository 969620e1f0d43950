"""Save the state of a replay, and go on from it.

A *snapshot* is the replay of a dispatcher's log up to a place shortly before the end of an interval (``stream.Cut``), and
the rows of the log behind that place. A later interval goes on from there with its own rows, and its tables are those of a
replay from the beginning. A snapshot is a cache: without it, or with one that cannot be used, the log is replayed from its
beginning.

The state is what the objects of the replay hold: the window of the audit, the broker's state, waits that are open. It is
pickled by the standard library. Reading it makes objects of the core's own classes, of numpy, Arrow and the containers of
Python, and of nothing else (``_Reader``): a snapshot comes from a store that others may write to. It holds for the code that
wrote it alone.

Example: consumer 1 has not acknowledged 3:4 at midnight. The snapshot of the day holds the pending acknowledgement, so the
next day sees 3:4 sent again as a redelivery, without a line of the day before.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import zstandard

from dispatch_core.arrays.batches import no_rows
from dispatch_core.errors import SnapshotError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_survey import Incarnation
from dispatch_core.recording.stream import Cut

if TYPE_CHECKING:
    from dispatch_core.replay.assembler import Replay

#: Version of this form of snapshots. A snapshot of a later one is refused by name.
FORMAT: Final = 2
#: A state is not longer than this when it is unpacked.
_MOST_BYTES: Final = 4 << 30
_LEVEL: Final = 3
#: The modules whose classes a state may hold; none of them reads or writes files.
_STATEFUL: Final = (
    *("dispatch_core.arrays.", "dispatch_core.audit.", "dispatch_core.broker.", "dispatch_core.verify."),
    *("dispatch_core.replay.", "dispatch_core.recording.stream", "dispatch_core.recording.log"),
    *("dispatch_core.recording.checkpoint", "dispatch_core.recording.load_order"),
)
#: Functions of the core that a state may name.
_FUNCTIONS: Final = frozenset({"_method", "_in_one_ledger"})
#: What a state may hold beside classes of the core.
_ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "_operator": frozenset({"eq"}),
    "builtins": frozenset({"set", "frozenset", "slice", "range", "complex", "bytearray"}),
    "collections": frozenset({"deque", "OrderedDict", "defaultdict", "Counter"}),
    "datetime": frozenset({"datetime", "date", "timedelta", "timezone"}),
    "numpy": frozenset({"ndarray", "dtype", "int64", "int32", "int8", "uint8", "bool_", "bool", "float64"}),
    "numpy._core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy._core.numeric": frozenset({"_frombuffer"}),
    "pyarrow.lib": frozenset(
        {
            *(
                "_reconstruct_table",
                "_restore_array",
                "chunked_array",
                "py_buffer",
                "schema",
                "field",
                "type_for_alias",
            ),
            *(
                "list_",
                "struct",
                "dictionary",
                "RecordBatch",
                "Buffer",
                "DataType",
                "Schema",
                "Field",
                "KeyValueMetadata",
            ),
        }
    ),
}


@dataclass(frozen=True, slots=True)
class ReplayState:
    """A replay up to a place in its log.

    Attributes:
        cut: the place.
        replay: of the incarnation that the place lies in; at its first line, of the incarnation before.
        earlier: the logs of the incarnations before that one, without their lines.
        loads: the lines of all incarnations, that one's as far as they lie before the place.
        extents: the positions that the lines of each name.
        rare: the rare lines and the headers of the incarnation before the place (``survey``).
    """

    cut: Cut
    replay: Replay
    earlier: list[Any]
    loads: list[Incarnation]
    extents: list[Any]
    rare: pa.Table


@dataclass(frozen=True, slots=True)
class KeptState:
    """A state as bytes (``encoded``), with its place, and broker and number of the incarnations up to there."""

    data: bytes
    cut: Cut
    loads: list[tuple[str | None, int]]

    @classmethod
    def of(cls, state: ReplayState, data: bytes) -> KeptState:
        """Return the bytes of a state with what tells where it goes on."""
        return cls(data, state.cut, [(load.broker, load.number) for load in state.loads])


class StateKeeper:
    """Keeps the state of a replay with which a later interval can go on.

    ``cut_us``: what comes from this time on is left to that interval. ``kept``: the state; ``None`` = the log can be cut
    nowhere before. ``traced``: the log has lines of a trace, which is compared from its beginning.
    """

    def __init__(self, cut_us: int) -> None:
        self.cut_us = cut_us
        self.kept: KeptState | None = None
        self.traced = False

    def keep(self, state: ReplayState) -> None:
        """Keep a state instead of the one before it, at once: the replay goes on and changes it.

        The state that is kept has forgotten what is settled; the replay itself has not, as lines of this interval may repeat
        it.
        """
        kept = state
        if state.cut.last_seq >= 0 and state.replay.can_forget:
            copy: ReplayState = _Reader(pa.BufferReader(_pickled(state))).load()
            if not any(table.num_rows for table in copy.replay.forget_settled().values()):
                kept = copy
        self.kept = KeptState.of(state, encoded(kept))


class _Writer(pickle.Pickler):
    """Pickles bound methods as a name of an object of the core, and logs without their lines, which are kept apart."""

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, Enum):
            # As Python does from 3.11.4 on; before, by ``getattr``, which a snapshot must not name.
            return type(obj), (obj.value,)
        if isinstance(obj, MethodType):
            return _method, (obj.__self__, obj.__name__)
        if isinstance(obj, DispatcherLog):
            # A table of a few lines may be a view of a large one, which would be pickled as a whole.
            bare = replace(obj, events=no_rows(obj.events.schema), messages=no_rows(obj.messages.schema))
            return bare.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _method(owner: Any, name: str) -> Any:
    """Return a method of an object of the core."""
    method = getattr(type(owner), name, None)
    if type(owner).__module__.split(".", 1)[0] != "dispatch_core" or not callable(method):
        raise SnapshotError(f"the snapshot names {name} of {type(owner).__name__}, which no state holds")
    return MethodType(method, owner)


class _Reader(pickle.Unpickler):
    """Makes objects of the core's classes, and of the few others that a state holds."""

    def find_class(self, module: str, name: str) -> Any:
        """See ``pickle.Unpickler``; raises ``SnapshotError`` for all others."""
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module.startswith(_STATEFUL) and "." not in name:
            found = super().find_class(module, name)
            # A module has the names that it imports, too: those are no part of a state.
            if getattr(found, "__module__", None) == module and (
                isinstance(found, type) or name in _FUNCTIONS
            ):
                return found
        raise SnapshotError(f"the snapshot names {module}.{name}, which no state holds")


def encoded(state: ReplayState) -> bytes:
    """Return a state as bytes, compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(_pickled(state))


def _pickled(state: ReplayState) -> pa.Buffer:
    buffer = pa.BufferOutputStream()
    _Writer(buffer, protocol=5).dump(state)
    return buffer.getvalue()


def decoded(data: bytes) -> ReplayState:
    """Return the state that ``encoded`` made bytes of. Raises ``SnapshotError`` for bytes that hold none."""
    try:
        unpacked = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST_BYTES)
        state = _Reader(pa.BufferReader(unpacked)).load()
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(f"the snapshot cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(state, ReplayState):
        raise SnapshotError("the snapshot holds no state of a replay")
    return state
