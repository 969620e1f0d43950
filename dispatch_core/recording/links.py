"""Walk the folders of a source of logs. Links are followed only if asked for, and a bad one stops nothing else.

A link is a symbolic link to a file or a folder. Whoever may write into a source could lead a reader anywhere with one. A
path that the user names is followed in any case; links that are found below it, or by a pattern, are not.

A link is *bad* if it leads nowhere, in a circle, to what is no file or folder, to what cannot be read, or to what is read
already. Each link that is left out and may have led to a log is named once.
"""

from __future__ import annotations

import glob
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError

#: Messages name at most so many links; the others are counted.
NAMED_AT_MOST: Final = 20
_MAX_DEPTH: Final = 32
_NOT_FOLLOWED: Final = (
    "a link, not followed; --follow-links (in the DAG: follow_links) reads what it leads to"
)

#: An entry of a folder: the parts of its name, and its path.
Entry = tuple[tuple[str, ...], Any]


class DeepFolderError(DispatchAuditError):
    """Folders that are nested too deep."""


class SourceWalk:
    """The files below one or several folders: first those reached without a link, then those behind links.

    The folders are ``pathlib.Path``s, or objects with the same methods (``iterdir``, ``is_dir``, ``is_file``, ``name``),
    such as those of an object store, which has no links.
    """

    def __init__(
        self, wanted: Callable[[str], object], *, follow_links: bool = False, hidden: bool = True
    ) -> None:
        """Begin a walk.

        Args:
            wanted: true for the name of a log file.
            follow_links: read what links lead to.
            hidden: also read files and folders whose names begin with a dot.
        """
        self.follow_links = follow_links
        self._wanted = wanted
        self._hidden = hidden
        self._left_out: dict[str, str] = {}
        self._seen: set[tuple[int, int]] = set()

    def files(self, folder: Any, parts: tuple[str, ...] = (), *, deep: bool = True) -> Iterator[Entry]:
        """Yield every file below ``folder``, with ``parts`` before the parts of its name; without ``deep`` only those in it.

        Raises ``OSError`` if a folder that is no link cannot be read, and ``DeepFolderError``.
        """
        links: deque[Entry] = deque()
        yield from self._below(folder, parts, links, 0 if deep else None)
        while links:
            parts, link = links.popleft()
            if deep or self._wanted(link.name):
                yield from self._behind(parts, link, links)

    def matching(self, pattern: str) -> list[Path]:
        """List what matches a pattern, sorted; what stands behind links is left out unless they are followed."""
        # glob.glob, because Path.glob refuses absolute patterns.
        matches = [Path(path) for path in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207
        given = next(at for at, part in enumerate((*Path(pattern).parts, "*")) if glob.has_magic(part))
        return [match for match in matches if self._may_read(match, given)]

    def messages(self) -> list[str]:
        """Write one line for each link that was left out, for at most ``NAMED_AT_MOST`` of them."""
        lines = [f"{path}: {why}" for path, why in self._left_out.items()]
        if len(lines) > NAMED_AT_MOST:
            lines[NAMED_AT_MOST:] = [f"... and {len(lines) - NAMED_AT_MOST} more links that were left out"]
        return lines

    def _below(
        self, folder: Any, parts: tuple[str, ...], links: deque[Entry], depth: int | None
    ) -> Iterator[Entry]:
        if depth is not None and depth > _MAX_DEPTH:
            raise DeepFolderError(f"{folder}: more than {_MAX_DEPTH} folders deep; nothing was read")
        self._note_seen(folder)
        for child in sorted(folder.iterdir(), key=lambda path: str(path.name)):
            name = str(child.name)
            if not name or (name.startswith(".") and not self._hidden):
                continue
            if _is_link(child):
                links.append(((*parts, name), child))
            elif child.is_dir():
                if depth is not None:
                    yield from self._below(child, (*parts, name), links, depth + 1)
            elif child.is_file():
                if self._wanted(name):
                    self._note_seen(child)
                yield (*parts, name), child

    def _behind(self, parts: tuple[str, ...], link: Any, links: deque[Entry]) -> Iterator[Entry]:
        """Yield the files that a link leads to."""
        local = _local(link)
        if local is None or not self._may_follow(local):
            return
        if link.is_file():
            self._note_seen(link)
            yield parts, link
            return
        found = self._below(link, parts, links, 0)
        while True:
            try:
                entry = next(found, None)
            except (OSError, DeepFolderError) as error:
                self._left_out[str(local)] = f"a link to a folder that cannot be read ({_why(error)})"
                return
            if entry is None:
                return
            yield entry

    def _may_follow(self, link: Path) -> bool:
        """Decide about a link; note the reason if it is left out."""
        try:
            target = link.stat()
        except OSError as error:
            self._left_out[str(link)] = f"a link that leads nowhere ({_why(error)})"
            return False
        is_folder, is_file = stat.S_ISDIR(target.st_mode), stat.S_ISREG(target.st_mode)
        if not (is_folder or self._wanted(link.name)):
            return False
        if not self.follow_links:
            self._left_out[str(link)] = _NOT_FOLLOWED
        elif not (is_folder or is_file):
            self._left_out[str(link)] = "a link to what is no file and no folder"
        elif (target.st_dev, target.st_ino) in self._seen:
            self._left_out[str(link)] = "a link to what is read already"
        else:
            try:
                os.close(os.open(link, os.O_RDONLY | os.O_NONBLOCK))
            except OSError as error:
                self._left_out[str(link)] = f"a link to what cannot be read ({_why(error)})"
            else:
                return True
        return False

    def _may_read(self, match: Path, given: int) -> bool:
        """Check a match of a pattern whose first ``given`` parts the user has named."""
        steps = (
            [match, *match.parents][::-1][-(len(match.parts) - given) :] if len(match.parts) > given else []
        )
        link = next((step for step in steps if step.is_symlink()), None)
        if link is None or (self.follow_links and link != match):
            return True
        return self._may_follow(link)

    def _note_seen(self, path: Any) -> None:
        if not self.follow_links:
            return
        local = _local(path)
        if local is not None:
            known = local.stat()
            self._seen.add((known.st_dev, known.st_ino))


def _local(path: Any) -> Path | None:
    """The path on this machine; None in an object store."""
    if isinstance(path, Path):
        return path
    return Path(path.path) if getattr(path, "protocol", None) == "file" else None


def _is_link(path: Any) -> bool:
    local = _local(path)
    return local is not None and local.is_symlink()


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
