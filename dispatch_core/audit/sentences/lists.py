"""Lists of names and positions for sentences, and numbers with their nouns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

#: Names that a sentence lists before it counts the others.
MOST_LISTED: Final = 6
#: Number of dispatchers from which those that failed are listed once more, and of the lines of that list.
_LISTED_FROM: Final = 3
_MOST_FAILED: Final = 10


def listed(
    names: Iterable[str], count: int | None = None, most: int = MOST_LISTED, *, last: str = "and"
) -> str:
    """List at most ``most`` names and count the others.

    Args:
        names: the names, all of them or the first.
        count: how many there are, where not all are given.
        most: how many parts the list has at most, "and 3 more" included.
        last: the word before the last name.

    >>> listed([]), listed(["w1"]), listed(["w1", "w2"]), listed(["w1", "w2", "w3"])
    ('nothing', 'w1', 'w1 and w2', 'w1, w2 and w3')
    >>> listed(["w1", "w2", "w3", "w4"], most=3), listed(["w1", "w2"], 1_402)
    ('w1, w2 and 2 more', 'w1, w2 and 1,400 more')
    """
    given = list(names)
    whole = len(given) if count is None else max(count, len(given))
    if not given:
        return "nothing"
    shown = given if whole <= most else given[: most - 1]
    if whole > len(shown):
        return f"{', '.join(shown)} and {whole - len(shown):,} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {last} {shown[-1]}"


def positions_listed(positions: Sequence[str], count: int | None = None, most: int = MOST_LISTED) -> str:
    """List positions (``"L:E"``) as ``listed`` does, or as a range if they follow each other and none is left out.

    >>> positions_listed(["3:7"]), positions_listed(["3:7", "3:17", "3:27"]), positions_listed(["3:7", "3:8"], 40)
    ('3:7', '3:7, 3:17 and 3:27', '3:7, 3:8 and 38 more')
    >>> positions_listed([f"3:{entry}" for entry in range(12)])
    '3:0 to 3:11'
    """
    given = list(positions)
    complete = count is None or count <= len(given)
    if complete and len(given) > 2 and _follow(given):
        return f"{given[0]} to {given[-1]}"
    return listed(given, count, most)


def _follow(positions: Sequence[str]) -> bool:
    places = [tuple(int(part) for part in position.split(":")) for position in positions]
    return all(a[0] == b[0] and a[1] + 1 == b[1] for a, b in pairwise(places))


def plural(count: int, singular: str, plural_form: str) -> str:
    """Choose the word for ``count`` things."""
    return singular if count == 1 else plural_form


def worst_first(lines: Sequence[str], dispatchers: int) -> str:
    """Return the list that ends the output about several dispatchers: those that failed, the worst first.

    Args:
        lines: what failed, the worst first.
        dispatchers: how many were judged; of fewer than three there is no list.

    >>> print(worst_first(["orders: out_of_order 3"], 3), end="")
    worst first:
      orders: out_of_order 3
    <BLANKLINE>
    """
    if not lines or dispatchers < _LISTED_FROM:
        return ""
    more = len(lines) - _MOST_FAILED
    tail = [f"… and {more} more; --failed-only shows all"] if more > 0 else []
    return "\n  ".join(["worst first:", *lines[:_MOST_FAILED], *tail]) + "\n\n"


def counted(count: int, singular: str, plural_form: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "entry", "entries"), counted(0, "entry", "entries"), counted(1_200, "entry", "entries")
    ('1 entry', '0 entries', '1,200 entries')
    """
    return f"{count:,} {plural(count, singular, plural_form)}"


def counts_by_name(counts: Mapping[str, int]) -> str:
    """List counts with their names in the order of the mapping.

    >>> counts_by_name({"split_key": 2, "redelivered": 1_403})
    '2 split_key, 1,403 redelivered'
    """
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
