"""What is fuzzed: each target makes a case (files, and a check that reads them) from a generator of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from tests.fuzz import bombs, forms, landing, recordings, texts
from tests.fuzz.columns import check_columns, columns, damaged
from tests.fuzz.documents import document
from tests.fuzz.lines import Content
from tests.fuzz.reading import check_document


@dataclass(frozen=True)
class Case:
    """Files by name, and what reads them: it returns how many times a document was read, or raises."""

    files: dict[str, bytes]
    check: Callable[[], int]


def _lines(content: Content, rng: Random) -> Case:
    made = document(rng, content)
    return Case({made.name: made.data}, partial(check_document, rng, made))


def _columns(content: Content, rng: Random) -> Case:
    """A Parquet file and damaged ones of it: to write one takes much longer than to read it."""
    made = columns(rng, content)
    all_of_it = [made, *(replace(made, data=damaged(rng, made.data), fates=None) for _ in range(_DAMAGED))]

    def check() -> int:
        return sum(check_columns(one) for one in all_of_it)

    return Case({f"{at}/{one.name}": one.data for at, one in enumerate(all_of_it)}, check)


def _text(make: Callable[[Random], tuple[bytes, Callable[[], int]]], rng: Random) -> Case:
    data, check = make(rng)
    return Case({"document": data}, check)


_DAMAGED: Final = 12

TARGETS: Final[dict[str, Callable[[Random], Case]]] = {
    "events": partial(_lines, "events"),
    "messages": partial(_lines, "messages"),
    "events_parquet": partial(_columns, "events"),
    "messages_parquet": partial(_columns, "messages"),
    **{
        name: partial(_text, make)
        for name, make in (
            texts.READERS | forms.READERS | landing.READERS | recordings.READERS | bombs.READERS
        ).items()
    },
}

#: How much of the time a target gets, beside 1: the logs come from outside, and some documents take no time at all.
WEIGHTS: Final[dict[str, float]] = {
    "events": 4,
    "messages": 4,
    "events_parquet": 2,
    "messages_parquet": 2,
    "limits": 0.2,
    "golden": 0.2,
    "moments": 0.2,
    "form_maintenance": 0.1,
}
