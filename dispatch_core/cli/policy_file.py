"""The options ``--policy`` and ``--limit``: the audit policy by which a command judges."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch_core.audit.limits import LimitsError
from dispatch_core.audit.policy.reader import POLICY_VARIABLE, PolicyError, PolicyReader, shipped_rules
from dispatch_core.audit.policy.yaml_reader import YamlFileError

if TYPE_CHECKING:
    from dispatch_core.audit.policy.rules import PolicyRules


def add_policy_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``, for ``policy_given``."""
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help=f"the audit policy: limits by topic (docs/verdicts.md; default: ${POLICY_VARIABLE}, else the shipped one)",
    )


def add_limit_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--limit``, for ``policy_given``."""
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        dest="limits",
        metavar="NAME=VALUE",
        help="a limit of the anomalies that replaces the policy's for all topics, e.g. stuck_key_ms=500; may be given again "
        "(docs/anomalies.md)",
    )


def policy_given(options: argparse.Namespace) -> PolicyRules:
    """Return the rules of ``--policy``, of the file that ``DISPATCH_AUDIT_POLICY`` names, or the shipped ones.

    ``--limit``, where the command has it, replaces limits of all rules.

    Of the file's sections ``expectations`` and ``alerts``, which only the pipeline uses, the names are checked and the
    contents are not read. Raises ``PolicyError`` and ``LimitsError``.
    """
    named = os.environ.get(POLICY_VARIABLE)
    path: Path | None = options.policy or (Path(named) if named else None)
    rules = shipped_rules() if path is None else PolicyReader(str(path), content_of(path)).policy_rules()
    return rules.with_finding_limits(_limits_given(getattr(options, "limits", [])))


def _limits_given(texts: Sequence[str]) -> dict[str, str]:
    """Return the limits that ``--limit`` names. Raises ``LimitsError`` for a text that is not ``NAME=VALUE``."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise LimitsError(f"--limit {text[:80]}: expected NAME=VALUE, such as stuck_key_ms=500")
        values[name.strip()] = value.strip()
    return values


def content_of(path: Path, error: type[YamlFileError] = PolicyError) -> bytes:
    """Read a YAML file; raise ``error`` if it cannot be read."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as problem:  # ValueError: the name of no file
        why = problem.strerror if isinstance(problem, OSError) else None
        raise error([f"{ascii(str(path))[1:-1]}: cannot be read: {why or problem}"]) from problem
