"""Number the keys of a topic over the batches of a log; each distinct key is decoded and hashed once.

The *key* of an entry is the bytes that dispatch hashes: ordering key before key. A log whose keys were replaced by
``key_h31`` is keyed by that hash: colliding keys are one key there. Where a log has both, as when masking was switched on,
an entry with a hash alone has the key that has this hash.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, encoded, plain, same_words, valid
from dispatch_core.arrays.growing import Growing
from dispatch_core.arrays.text_ids import NONE, TextIds
from dispatch_core.broker import hashing
from dispatch_core.errors import NotStreamableError

#: Columns that give a key, and the order in which a key that is given in two ways is shown.
_TEXT, _BINARY, _ORDERING, _HASH = range(4)
#: Number of unused keys that are kept before the keys in use are numbered anew.
_SPARE: Final = 65_536

#: Ids of words of a dictionary that stand for no key yet.
_NOT_ASKED, _UNKNOWN = -1, -2

#: Identity of a key: its text, or its bytes if they are no text, or its hash if only that is known.
_Identity = str | bytes | int


class Keys:
    """Ids of distinct keys, how they are shown, and their masked murmur hash."""

    def __init__(self, *, streaming: bool) -> None:
        self._streaming = streaming
        # None while all keys are texts: those are looked up by ``_text_ids``
        self._ids: dict[_Identity, int] | None = None
        # the words of the last batch and their ids: batches of one row group share their words
        self._words: pa.Array | None = None
        self._word_ids = np.empty(0, dtype=np.int32)
        self._text: pa.Array = pa.array([], pa.string())
        self._text_ids = TextIds()  # of ``_text``, while all keys are texts
        self._base64 = Growing(np.bool_)
        self._source = Growing(np.int8)
        self._h31 = Growing(np.int64)  # -1 = not known yet
        # of the keys that were forgotten: one of them, given in another way, would not be recognised
        self._last_forgotten_source = -1

    def __len__(self) -> int:
        return len(self._base64)

    @property
    def texts(self) -> pa.Array:
        """The keys by id as they are shown, text or base64."""
        return self._text

    @property
    def base64(self) -> npt.NDArray[np.bool_]:
        """Mask by id: True for a key that is shown as base64."""
        return self._base64.values

    def text(self, key: int) -> str:
        """Return one key as it is shown."""
        shown: str = self._text[key].as_py()
        return shown

    def encode(self, messages: pa.Table) -> npt.NDArray[np.int32]:
        """Return the id of the key of each row, -1 = no key; new keys get the next ids.

        Raises ``NotStreamableError`` (only when streaming) if a key comes in another form than before, so that earlier rows
        should have shown it differently.
        """
        runs = _runs(messages["key"])
        if len(runs) > 1:
            return np.concatenate([self.encode(messages.slice(*run)) for run in runs])
        row_key = np.full(messages.num_rows, -1, dtype=np.int32)
        texts: list[str] = []
        known = len(self)
        for name, source in (("key", _TEXT), ("ordering_key_b64", _ORDERING), ("key_h31", _HASH)):
            column = messages[name]
            if column.null_count == len(column):
                continue
            codes, words = encoded(column)
            given = valid(column)
            if source == _HASH:
                given &= row_key < 0
            if source != _TEXT:
                self._be_mixed(texts)
                self._write(row_key, given, codes, words, source, known, texts)
                continue
            flags = messages["key_b64"]
            flagged = np.asarray(pc.fill_null(flags, False)) if flags.null_count < len(flags) else None
            if flagged is None or not flagged.any():
                if self._ids is None and not texts and self._last_forgotten_source < _BINARY:
                    texts = self._write_texts(row_key, given, codes, words)
                else:
                    self._write(row_key, given, codes, words, _TEXT, known, texts)
            else:
                self._be_mixed(texts)
                self._write(row_key, given & ~flagged, codes, words, _TEXT, known, texts)
                self._write(row_key, given & flagged, codes, words, _BINARY, known, texts)
        if texts:
            added = pa.array(texts, pa.string())
            if self._ids is None:
                self._text_ids.add(added)
            self._text = pa.concat_arrays([self._text, added])
            self._h31.more(len(texts))[...] = -1
        return row_key

    def h31(self, messages: pa.Table, row_key: npt.NDArray[np.int32], *, fallback: bool) -> Ints:
        """Return the masked murmur hash of each row (``hashing.entry_h31``); ``row_key``: the result of ``encode``."""
        given = valid(messages["key_h31"])
        both = given & (valid(messages["key"]) | valid(messages["ordering_key_b64"]))
        if both.any():
            # not one hash per key: what stands in the row counts
            return hashing.entry_h31(plain(messages), fallback=fallback)
        keyed = row_key >= 0
        out = np.empty(len(row_key), dtype=np.int64)
        out[keyed] = self._h31.values[row_key[keyed]]
        unknown = np.flatnonzero(keyed & (out < 0))
        _, first = np.unique(row_key[unknown], return_index=True)
        rows = unknown[first]
        new = row_key[rows]
        if self._ids is None:
            words = self._text.take(pa.array(new)).cast(pa.binary())
            self._h31.values[new] = hashing.h31_array(words.to_pylist())
        else:
            self._h31.values[new] = _h31_of_rows(messages, rows, fallback=fallback)
        out[unknown] = self._h31.values[row_key[unknown]]
        keyless = np.flatnonzero(~keyed)
        out[keyless] = _h31_of_rows(messages, keyless, fallback=fallback)
        return out

    def forget(self, in_use: npt.NDArray[np.bool_], *, at_once: bool) -> npt.NDArray[np.int32] | None:
        """Number the keys ``in_use`` anew if enough others are kept, or ``at_once``; returns new ids, -1 = forgotten."""
        used = int(in_use.sum())
        if used == len(self) or (not at_once and len(self) <= 2 * used + _SPARE):
            return None
        new = np.where(in_use, np.cumsum(in_use) - 1, -1).astype(np.int32)
        gone = self._source.values[~in_use]
        self._last_forgotten_source = max(self._last_forgotten_source, int(gone.max()))
        if self._ids is None:
            self._text_ids.keep(new)
        else:
            kept = new.tolist()
            self._ids = {identity: kept[key] for identity, key in self._ids.items() if kept[key] >= 0}
        self._words = None
        self._text = self._text.filter(pa.array(in_use))
        for column in (self._base64, self._source, self._h31):
            column.keep(in_use)
        return new

    def _be_mixed(self, texts: list[str]) -> None:
        """Identify keys by text, bytes or hash from now on, since they come in more than one form.

        ``texts``: of the last keys, not yet in ``_text``.
        """
        if self._ids is None:
            self._ids = {text: key for key, text in enumerate([*self._text.to_pylist(), *texts])}

    def _write_texts(
        self,
        row_key: npt.NDArray[np.int32],
        used: npt.NDArray[np.bool_],
        codes: npt.NDArray[Any],
        words: pa.Array,
    ) -> list[str]:
        """Give the rows ``used`` the ids of their words while all keys are texts; returns those of new keys, by id."""
        if self._words is None or not same_words(words, self._words):
            self._words, self._word_ids = words, np.full(len(words), _NOT_ASKED, dtype=np.int32)
        everywhere = bool(used.all())
        met = np.zeros(len(words), dtype=np.bool_)
        met[codes if everywhere else codes[used]] = True
        self._look_up(words, met)
        new = np.flatnonzero(met & (self._word_ids == _UNKNOWN))
        # A dictionary may hold a word twice; both are one key.
        fresh = words.take(pa.array(new)).dictionary_encode()
        texts: list[str] = fresh.dictionary.to_pylist()
        self._word_ids[new] = len(self) + np.asarray(fresh.indices)
        self._base64.more(len(texts))[...] = False
        self._source.more(len(texts))[...] = _TEXT
        if everywhere:
            row_key[...] = self._word_ids[codes]
        else:
            row_key[used] = self._word_ids[codes[used]]
        return texts

    def _look_up(self, words: pa.Array, met: npt.NDArray[np.bool_]) -> None:
        """Find the ids of the words ``met``, and of all words if there are not many more: later batches use them."""
        asked = np.flatnonzero(met & (self._word_ids == _NOT_ASKED))
        if not len(asked):
            return
        if len(words) < 8 * len(asked):
            asked = np.flatnonzero(self._word_ids == _NOT_ASKED)
        found = self._text_ids.find(words.take(pa.array(asked)), self._text)
        self._word_ids[asked] = np.where(found == NONE, _UNKNOWN, found)

    def _write(
        self,
        row_key: npt.NDArray[np.int32],
        used: npt.NDArray[np.bool_],
        codes: npt.NDArray[Any],
        words: pa.Array,
        source: int,
        known: int,
        texts: list[str],
    ) -> None:
        """Give the rows ``used`` the ids of their words; ``texts``: the shown keys from id ``known`` on."""
        everywhere = bool(used.all())
        counts = np.bincount(codes if everywhere else codes[used], minlength=len(words))
        present = np.flatnonzero(counts)
        if not len(present):
            return
        if source < self._last_forgotten_source or (
            source == _HASH and 0 <= self._last_forgotten_source < _HASH
        ):
            raise NotStreamableError(
                "the message log gives keys as text, as base64 or as hashes, and a key that was dropped from the window "
                "may be one that now comes in another way"
            )
        wanted = (words if len(present) == len(words) else words.take(pa.array(present))).to_pylist()
        if source == _TEXT:
            identities: list[_Identity] = wanted
        elif source == _HASH:
            identities = wanted
            wanted = [f"h31:{word}" for word in wanted]
        else:
            identities = [self._decoded(word) for word in wanted]
        assert self._ids is not None
        ids, new = self._ids, known + len(texts)
        id_list = [ids.get(identity, -1) for identity in identities]
        self._match_hashes(ids, identities, id_list)
        added: list[str] = []
        for index in [index for index, key in enumerate(id_list) if key < 0]:
            id_list[index] = ids.setdefault(identities[index], new)
            if id_list[index] == new:
                new += 1
                added.append(wanted[index])
        id_at = np.array(id_list, dtype=np.int32)
        met = id_at[id_at < known]
        if self._streaming and np.any(self._source.values[met] > source):
            raise NotStreamableError("the message log gives a key as base64 or hash first and as text later")
        texts += added
        self._base64.more(len(added))[...] = source in (_BINARY, _ORDERING)
        self._source.more(len(added))[...] = source
        id_of = np.full(len(words), -1, dtype=np.int32)
        id_of[present] = id_at
        if everywhere:
            row_key[...] = id_of[codes]
        else:
            row_key[used] = id_of[codes[used]]

    def _match_hashes(
        self, ids: Mapping[_Identity, int], identities: Sequence[_Identity], id_list: list[int]
    ) -> None:
        """Find the ids of new hashes among those of known keys, and of new keys among those of known hashes."""
        new = [at for at, key in enumerate(id_list) if key < 0]
        hashes = any(isinstance(identity, int) for identity in identities)
        if not new or not any(isinstance(identity, int) != hashes for identity in ids):
            return
        words = [identity for identity in (ids if hashes else identities) if not isinstance(identity, int)]
        raw = [word.encode() if isinstance(word, str) else word for word in words]
        h31s: list[int] = hashing.h31_array(raw).tolist()
        if hashes:
            # Of colliding keys the first.
            key_of = {h31: ids[word] for word, h31 in zip(reversed(words), reversed(h31s), strict=True)}
            id_list[:] = [
                key_of.get(int(identity), -1) if key < 0 else key  # type: ignore[arg-type] # all are hashes
                for identity, key in zip(identities, id_list, strict=True)
            ]
        else:
            id_list[:] = [
                ids.get(h31, -1) if key < 0 else key for h31, key in zip(h31s, id_list, strict=True)
            ]

    def _decoded(self, word: str) -> _Identity:
        try:
            decoded = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            # The reader quarantines such rows. In a table from elsewhere the text itself is the only identity there is.
            return word
        if self._streaming and base64.b64encode(decoded).decode() != word:
            raise NotStreamableError(f"{word[:80]!r} is not the only way to write this key in base64")
        try:
            return decoded.decode()
        except UnicodeDecodeError:
            return decoded


def _runs(column: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Return (first row, number of rows) of each run with one dictionary: a batch may hold several row groups."""
    if not pa.types.is_dictionary(column.type):
        return [(0, len(column))]
    runs: list[tuple[int, int]] = []
    before: pa.Array | None = None
    begin = 0
    for chunk in column.chunks:
        if before is not None and same_words(chunk.dictionary, before):
            runs[-1] = (runs[-1][0], runs[-1][1] + len(chunk))
        else:
            runs.append((begin, len(chunk)))
        before, begin = chunk.dictionary, begin + len(chunk)
    return runs


def _h31_of_rows(messages: pa.Table, rows: npt.NDArray[Any], *, fallback: bool) -> Ints:
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    names = ["key", "key_b64", "ordering_key_b64", "key_h31", "producer", "sequence_id"]
    wanted = messages.select(names)
    if len(rows) < wanted.num_rows:
        wanted = wanted.take(pa.array(rows))
    return hashing.entry_h31(plain(wanted), fallback=fallback)
