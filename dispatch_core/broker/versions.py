"""Broker versions: parse them, and compare a release with the releases that brought a change.

A *line* is (major, minor). Fixes reach several lines at once, so a change has a table: the first patch release per line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dispatch_core.errors import ProfileError

Version = tuple[int, int, int]
Line = tuple[int, int]

OLDEST_KNOWN: Final[Version] = (2, 4, 0)
PREVIEW_PIP_282: Final = "4.0.0-preview.1"

_RELEASE: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-.+]([0-9A-Za-z.+-]+))?")


def parse_version(text: str) -> Version:
    """Parse ``"4.2.4"``, ``"4.0.0-preview.1"`` or ``"4.1.0-SNAPSHOT"`` into (major, minor, patch).

    Raises ``ProfileError`` for text that is no version and for versions below 2.4.0.

    >>> parse_version("4.2.4")
    (4, 2, 4)
    """
    match = _RELEASE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ProfileError(
            f"broker version {str(text)[:80]!r} is not a version such as 4.2.4: correct it in the log's header "
            "or give the right one with --broker-version"
        )
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version < OLDEST_KNOWN:
        raise ProfileError(
            f"broker version {text} is below 2.4.0, the oldest release whose rules are known here: "
            "correct it in the log's header or give the right one with --broker-version"
        )
    return version


def suffix(text: str) -> str:
    """Return the text after the three numbers: ``"preview.1"`` of ``"4.0.0-preview.1"``, empty for a release.

    >>> suffix("4.1.0-SNAPSHOT")
    'SNAPSHOT'
    """
    match = _RELEASE.fullmatch(text.strip())
    return match[4] or "" if match else ""


def reached(version: Version, lines: Mapping[Line, int]) -> bool:
    """True if a release is the first patch release of its line in ``lines``, or later.

    A line that is absent has no such release, except for lines after all that are named, where all releases count.

    >>> since = {(3, 0): 8, (3, 3): 3, (4, 0): 1}
    >>> [reached(v, since) for v in ((3, 0, 8), (3, 1, 3), (3, 3, 2), (4, 1, 0))]
    [True, False, False, True]
    """
    line = version[:2]
    if line in lines:
        return version[2] >= lines[line]
    return bool(lines) and line > max(lines)


def text_of(version: Version) -> str:
    """Return ``"4.2.4"`` for ``(4, 2, 4)``."""
    return ".".join(map(str, version))
