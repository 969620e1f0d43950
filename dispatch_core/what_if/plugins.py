"""Selectors and ordering rules by name: those built in here, and those of installed packages (entry points).

A package offers one in its ``pyproject.toml``:

    [project.entry-points."dispatch_audit.selectors"]
    my-selector = "my_package.module:make_selector"

    [project.entry-points."dispatch_audit.ordering_rules"]
    my-rule = "my_package.module:make_rule"

``broker.pluggable`` says what these functions are given and return. A package is imported when its rule is asked for.

>>> find("rate-split").selector, find("per-key-position").ordering, find("nobody-has-it")
('rate-split', 'per-key-position', None)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from dispatch_core.broker.ordering.per_key_position import PerKeyPositions
from dispatch_core.broker.pluggable import OrderingFactory, SelectorFactory, View
from dispatch_core.broker.selectors.rate_split import RateSplitSelector
from dispatch_core.broker.selectors.selector import Selector
from dispatch_core.errors import DispatchAuditError

SELECTORS: Final = "dispatch_audit.selectors"
ORDERING_RULES: Final = "dispatch_audit.ordering_rules"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class PluginError(DispatchAuditError):
    """A plug-in that cannot be loaded, or that failed."""


@dataclass(frozen=True, slots=True)
class Plugged:
    """The names of a selector and of an ordering rule that no release has; empty = the release's."""

    selector: str = ""
    ordering: str = ""

    def __bool__(self) -> bool:
        return bool(self.selector or self.ordering)


#: Everything is the release's.
NOTHING: Final = Plugged()


def _rate_split(view: View) -> Selector:
    return RateSplitSelector(view.rate)


_BUILT_IN_SELECTORS: Final[Mapping[str, SelectorFactory]] = {"rate-split": _rate_split}
_BUILT_IN_RULES: Final[Mapping[str, OrderingFactory]] = {"per-key-position": PerKeyPositions}


def names() -> list[str]:
    """List the names of all that can be asked for, those built in first."""
    built_in = [*_BUILT_IN_SELECTORS, *_BUILT_IN_RULES]
    return list(
        dict.fromkeys([*built_in, *sorted(_installed(SELECTORS)), *sorted(_installed(ORDERING_RULES))])
    )


def find(name: str) -> Plugged | None:
    """Return the selector or ordering rule of a name; None for none. What is built in wins over what is installed."""
    if name in _BUILT_IN_SELECTORS or (name not in _BUILT_IN_RULES and name in _installed(SELECTORS)):
        return Plugged(selector=name)
    if name in _BUILT_IN_RULES or name in _installed(ORDERING_RULES):
        return Plugged(ordering=name)
    return None


def selector_of(name: str) -> SelectorFactory:
    """Return the function that makes a selector. Raises ``PluginError``."""
    return _loaded(name, _BUILT_IN_SELECTORS, SELECTORS)


def ordering_of(name: str) -> OrderingFactory:
    """Return the function that makes an ordering rule. Raises ``PluginError``."""
    return _loaded(name, _BUILT_IN_RULES, ORDERING_RULES)


def _loaded(name: str, built_in: Mapping[str, Callable[[View], Any]], group: str) -> Callable[[View], Any]:
    if name in built_in:
        return built_in[name]
    entry_point = _installed(group).get(name)
    if entry_point is None:
        raise PluginError(
            f"no installed package offers {name[:80]!r} in {group}: install it, or correct the name"
        )
    try:
        factory = entry_point.load()
    except Exception as error:
        raise PluginError(
            f"{name} of {group} cannot be loaded from {entry_point.value}: {type(error).__name__}: {error}; mend or "
            "remove the package that offers it"
        ) from error
    if not callable(factory):
        raise PluginError(
            f"{name} of {group}: {entry_point.value} is no function that makes one; mend the package"
        )
    return factory  # type: ignore[no-any-return]


def _installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; names that no command line could say are left out."""
    return {entry.name: entry for entry in entry_points(group=group) if _NAME.fullmatch(entry.name)}
