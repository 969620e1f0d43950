"""The optional parts of an installation, and the error when one is missing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from dispatch_core.errors import DispatchAuditError

#: Modules of the extra ``spark``, which are imported deep inside the stages and only when they are used.
_SPARK: Final = ("delta", "deltalake", "great_expectations", "pandas", "pyspark", "yaml")


class MissingExtraError(DispatchAuditError):
    """A part of the product that is not installed. The message is one line, with the command that installs it."""

    def __init__(self, extra: str, modules: Sequence[str]) -> None:
        super().__init__(
            f"the extra {extra} is not installed (missing: {', '.join(modules)}); nothing was done. "
            f'Install it: pip install "pulsar-dispatch-audit[{extra}]"'
        )


def require_spark() -> None:
    """Check that the extra ``spark`` is installed, without importing it. Raises ``MissingExtraError``."""
    missing = [module for module in _SPARK if find_spec(module) is None]
    if missing:
        raise MissingExtraError("spark", missing)
