"""Every example in a docstring of the core prints the output shown."""

from __future__ import annotations

import doctest
import importlib
import linecache
import pkgutil

import pytest

import dispatch_core

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dispatch_core.__path__, "dispatch_core.")
    if not module.name.endswith(("__main__", ".warmup"))
)


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = [
        name for name in MODULES if any(t.examples for t in finder.find(importlib.import_module(name)))
    ]
    assert len(with_examples) > 10


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str) -> None:
    linecache.clearcache()  # doctest looks whether each file in it has changed, once for each docstring
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0
