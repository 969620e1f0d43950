"""Open and list the pages of the home and the scripts they share, and no other files. Does not use Airflow.

A page is a regular file below ``reports``, ``data-docs``, ``what-if`` or ``hunts`` of a namespace of the home
(``sources.py``), with a name and type that this project writes. An address has the namespace in front of the area.
Nothing else can be opened: no hidden or unfinished files, no other types, no unusual spellings of a path, and no
symbolic links. On this machine each step of a path is opened without following links, so that replacing a folder by a link
meanwhile does not lead elsewhere; an object store has no links.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from dispatch_airflow.home import Home
from dispatch_airflow.sources import is_namespace

if TYPE_CHECKING:
    from spark_jobs.location import Location

#: Path of the pages in Airflow's web server.
PREFIX: Final = "/dispatch-audit"
#: Areas by their name in an address and in the home, with their titles.
AREAS: Final = {
    "reports": "Reports",
    "data-docs": "Data Docs",
    "what-if": "What-if results",
    "hunts": "Hunts",
}
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".toml": "text/plain; charset=utf-8",
}
#: Folder of the scripts that pages of an area share, and their names.
SCRIPTS: Final = "scripts"
_SCRIPT: Final = re.compile(r"plotly-[0-9a-f]{20}\.js")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+=@,-]{0,199}")
_MAX_DEPTH: Final = 12
#: Maximum number of folders in the list of an area.
_MAX_LISTED: Final = 500


@dataclass(frozen=True, slots=True)
class Page:
    """An open page. ``scripts``: it may run its own scripts, in a sandbox; only pages that draw may."""

    file: BinaryIO
    size_bytes: int
    media_type: str
    scripts: bool


def root_of(home: Home, area: str) -> Location:
    """Return the folder of an area."""
    return home.place / area


def split(address: str) -> tuple[str, str, str]:
    """Divide an address behind ``PREFIX`` into namespace (may be empty), area and path, whether or not they exist.

    >>> split("sources/orders/reports/2026-11-21/index.html")
    ('sources/orders', 'reports', '2026-11-21/index.html')
    >>> split("reports/")
    ('', 'reports', '')
    """
    parts = address.split("/")
    named = 2 if is_namespace("/".join(parts[:2])) else 0
    area, _slash, path = "/".join(parts[named:]).partition("/")
    return "/".join(parts[:named]), area, path


def address_of(home: Home, path: Location) -> str | None:
    """Return the address of a file below an area, from ``PREFIX`` on; None for any other file.

    ``home``: any of its namespaces.
    """
    try:
        address = path.below(home.within("").place)
    except ValueError:
        return None
    return f"{PREFIX}/{address}" if is_page(address) else None


def is_page(address: str) -> bool:
    """True for an address behind ``PREFIX`` that a page may have."""
    _namespace, area, path = split(address)
    return area in AREAS and _are_names(path.split("/"))


def open_page(home: Home, area: str, path: str) -> Page | None:
    """Open the page with this path in an area; None if there is none. The caller closes the file."""
    parts = path.split("/")
    media_type = TYPES.get(os.path.splitext(parts[-1])[1])  # noqa: PTH122 - a name, not a path of this machine
    if area not in AREAS or media_type is None or not _are_names(parts):
        return None
    found = _opened(root_of(home, area), parts)
    if found is None:
        return None
    scripts = media_type == TYPES[".html"] and area != "data-docs" and parts[-1] != INDEX
    return Page(*found, media_type, scripts)


def open_script(home: Home, area: str, name: str) -> Page | None:
    """Open a script that the pages of an area share; None if there is none. The caller closes the file."""
    found = (
        _opened(root_of(home, area), [SCRIPTS, name]) if area in AREAS and _SCRIPT.fullmatch(name) else None
    )
    return None if found is None else Page(*found, "text/javascript; charset=utf-8", scripts=False)


def _opened(root: Location, parts: list[str]) -> tuple[BinaryIO, int] | None:
    """Open a file below the root, with its size; None if there is none."""
    if root.local is None:
        try:
            file = (root / "/".join(parts)).open()
            return file, file.size()
        except OSError:
            return None
    opened = _open(root.local, parts, os.O_RDONLY | os.O_NONBLOCK)
    if opened is None:
        return None
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode):
        os.close(opened)
        return None
    return os.fdopen(opened, "rb"), found.st_size


def is_folder(home: Home, area: str, path: str) -> bool:
    """True if the path is a folder with an index page."""
    page = open_page(home, area, "/".join([*filter(None, [path.rstrip("/")]), INDEX]))
    if page is None:
        return False
    page.file.close()
    return True


def folders(home: Home, area: str) -> list[str]:
    """List the folders of an area that have an index page, newest name first."""
    try:
        names = [folder.name for folder in root_of(home, area).folders()]
    except OSError:
        return []
    known = (name for name in sorted(names, reverse=True) if _NAME.fullmatch(name))
    found = (name for name in known if is_folder(home, area, name))
    return [name for name, _ in zip(found, range(_MAX_LISTED), strict=False)]


def _are_names(parts: list[str]) -> bool:
    return len(parts) <= _MAX_DEPTH and all(_NAME.fullmatch(part) for part in parts)


def _open(root: Path, parts: list[str], flags: int) -> int | None:
    """Open a file step by step from the root without following links below it; None if that fails."""
    try:
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        for order, part in enumerate(parts, 1):
            here = flags if order == len(parts) else os.O_RDONLY | os.O_DIRECTORY
            below = os.open(part, here | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
    except OSError:
        os.close(at)
        return None
    return at
