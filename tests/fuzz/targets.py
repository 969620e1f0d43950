"""Targets of the fuzzer: each makes a case (files, and a check that reads them) from a random number generator."""

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
    """Files by name, and the check that reads them: it returns the number of reads, or raises."""

    files: dict[str, bytes]
    check: Callable[[], int]


def _lines(content: Content, rng: Random) -> Case:
    made = document(rng, content)
    return Case({made.name: made.data}, partial(check_document, rng, made))


def _columns(content: Content, rng: Random) -> Case:
    """Make a Parquet file and damaged copies, since writing one takes much longer than reading it."""
    made = columns(rng, content)
    files = [made, *(replace(made, data=damaged(rng, made.data), fates=None) for _ in range(_DAMAGED))]

    def check() -> int:
        return sum(check_columns(file) for file in files)

    return Case({f"{at}/{file.name}": file.data for at, file in enumerate(files)}, check)


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

#: Weights of targets for their share of the time, if not 1: more for logs, which come from outside, less for fast ones.
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
