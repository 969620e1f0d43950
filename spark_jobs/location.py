"""A place of a home: a folder or file of this machine, or a prefix or object of a store (``s3://bucket/prefix``).

All parts of a home (landing, tables, pages, state) are read and written through ``Location``, so a local folder and an
object store take the same way. It promises no more than an object store can keep:

* ``write_bytes`` and a stream of ``create`` that is closed replace a whole object; nobody reads half of one that
  ``write_bytes`` writes. On this machine that is a file beside it and one rename, in a store the end of the upload.
* Nothing is renamed or locked. Data files get their final names at once, and count when a commit names them.
* A folder exists while something is in it.

Credentials come from the environment (``dispatch_core.recording.stored_files``) and are not part of a location.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from dispatch_core.errors import DispatchAuditError, disk_trouble, store_trouble
from dispatch_core.recording.stored_files import endpoint, filesystem_of, is_url, region

#: Characters of URLs and file patterns: Delta or Spark misreads a path that contains one.
NOT_IN_A_PATH: Final = frozenset("[]{}*?^%#|\\")
#: Bytes that a stream fetches at once.
_AHEAD_BYTES: Final = 4 << 20
_COPY_BYTES: Final = 4 << 20
#: A home that does not answer is refused soon.
_PROBE_ATTEMPTS: Final = 2


class HomeError(DispatchAuditError):
    """A home that cannot be reached or written to; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored file that a listing found, with its size and the time of its last write."""

    location: Location
    size_bytes: int
    written: datetime


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """An absolute path of this machine, or a URL of a store, without a slash at its end."""

    url: str

    @classmethod
    def of(cls, place: Location | str | os.PathLike[str]) -> Location:
        """Make a location of a path or URL; a relative path begins at the working directory."""
        if isinstance(place, Location):
            return place
        text = os.fspath(place)
        if is_url(text):
            filesystem_of(text)  # raises for a store that is not known
            return cls(text.rstrip("/"))
        return cls(os.path.abspath(text))  # noqa: PTH100 - texts, as for URLs

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """The folder that it is in."""
        return Location(self.url.rpartition("/")[0] or "/")

    @property
    def local(self) -> Path | None:
        """The path on this machine; None in a store."""
        return None if is_url(self.url) else Path(self.url)

    @property
    def link(self) -> str:
        """A link for people: a ``file`` URL on this machine."""
        return self.url if self.local is None else self.local.as_uri()

    def below(self, folder: Location) -> str:
        """The parts below ``folder``, as text. Raises ``ValueError`` if it is not below it."""
        prefix = f"{folder.url.rstrip('/')}/"
        if not self.url.startswith(prefix):
            raise ValueError(f"{self} is not below {folder}")
        return self.url[len(prefix) :]

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Return ``deltalake``'s options for the store, without credentials, which it reads from the environment."""
        if not self.url.startswith("s3://"):
            return None
        address = endpoint()
        known = {"aws_endpoint_url": address, "aws_region": region() or ("us-east-1" if address else None)}
        plain = "true" if address and address.startswith("http://") else None
        return {
            # Of two commits of one version the store accepts one.
            "aws_conditional_put": "etag",
            "max_retries": "12",
            "retry_timeout": "180s",
            **{name: value for name, value in (*known.items(), ("aws_allow_http", plain)) if value},
        }

    # ---- one object ----

    def _opened(self) -> tuple[fs.FileSystem, str]:
        return filesystem_of(self.url)

    def exists(self) -> bool:
        """True if it is a file, or a folder with something in it."""
        filesystem, path = self._opened()
        return filesystem.get_file_info(path).type != fs.FileType.NotFound

    def size_bytes(self) -> int | None:
        """Return the size of a file; None if there is none."""
        filesystem, path = self._opened()
        found = filesystem.get_file_info(path)
        return found.size if found.type == fs.FileType.File else None

    def open(self) -> pa.NativeFile:
        """Open for reading at any place. Raises ``FileNotFoundError``."""
        filesystem, path = self._opened()
        return filesystem.open_input_file(path)

    def stream(self) -> pa.NativeFile:
        """Open for reading from the beginning to the end. Raises ``FileNotFoundError``."""
        filesystem, path = self._opened()
        return filesystem.open_input_stream(path, compression=None, buffer_size=_AHEAD_BYTES)

    def read_bytes(self) -> bytes:
        """Read all of it. Raises ``FileNotFoundError``."""
        with self.open() as file:
            return bytes(file.read())

    def read_text(self) -> str:
        """Read all of it as UTF-8. Raises ``FileNotFoundError``."""
        return self.read_bytes().decode("utf-8")

    def create(self) -> pa.NativeFile:
        """Open a new object for writing, under its final name; in a store it can be read when the stream is closed."""
        filesystem, path = self._opened()
        if self.local is not None:
            self.local.parent.mkdir(parents=True, exist_ok=True)
        return filesystem.open_output_stream(path, compression=None)

    def write_bytes(self, content: bytes) -> None:
        """Write a whole object, in place of an earlier one."""
        if self.local is None:
            with self.create() as stream:
                stream.write(content)
            return
        self.local.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.local.with_name(f".{uuid.uuid4().hex}.part")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(self.local)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise

    def write_text(self, text: str) -> None:
        """Write a whole object as UTF-8, in place of an earlier one."""
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def put(self, file: Path) -> None:
        """Write a whole object from a file of this machine."""
        if self.local is None:
            with file.open("rb") as source, self.create() as stream:
                shutil.copyfileobj(source, stream, _COPY_BYTES)
            return
        self.write_bytes(file.read_bytes())

    def sync(self) -> None:
        """Wait until a written file is on the disk; a store promises that by itself."""
        if self.local is not None:
            with self.local.open("rb") as file:
                os.fsync(file.fileno())

    def delete(self) -> None:
        """Remove a file, if there is one."""
        filesystem, path = self._opened()
        with suppress(FileNotFoundError):
            filesystem.delete_file(path)

    # ---- what is below ----

    def files(self) -> Iterator[Stored]:
        """Yield all files below it, in the order of their names; none if there is no such folder."""
        yield from sorted(
            self._found(recursive=True, kind=fs.FileType.File), key=lambda found: found.location
        )

    def folders(self) -> list[Location]:
        """List the folders in it, in the order of their names."""
        return sorted(found.location for found in self._found(recursive=False, kind=fs.FileType.Directory))

    def children(self) -> list[Stored]:
        """List the files in it, without those in folders, in the order of their names."""
        return sorted(self._found(recursive=False, kind=fs.FileType.File), key=lambda found: found.location)

    def _found(self, *, recursive: bool, kind: fs.FileType) -> Iterator[Stored]:
        filesystem, path = self._opened()
        root = self.url[: len(self.url) - len(path)]
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        for info in filesystem.get_file_info(selector):
            if info.type == kind:
                written = datetime.fromtimestamp(0, UTC) if info.mtime is None else info.mtime
                yield Stored(Location(root + info.path), info.size or 0, written)

    def delete_folder(self) -> None:
        """Remove everything below it, if there is something."""
        filesystem, _ = self._opened()
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
            return
        # Some stores refuse to delete a folder that has something in it, so the innermost go first.
        inner = [found.location for found in self._found(recursive=True, kind=fs.FileType.Directory)]
        for folder in sorted((*inner, self), key=lambda folder: folder.url.count("/"), reverse=True):
            with suppress(FileNotFoundError):
                filesystem.delete_dir(folder._opened()[1])

    # ---- may it be used ----

    def check(self) -> None:
        """Raise ``HomeError``, in one line, unless objects can be listed, written, read and removed here."""
        if bad := sorted(set(self.url.partition("://")[2] or self.url) & NOT_IN_A_PATH):
            raise HomeError(
                f"{self}: Delta and Spark misread a path that contains {' '.join(bad)}; nothing was done. Choose a home "
                "without these characters in its path"
            )
        probe = self / f".probe-{uuid.uuid4().hex}"
        try:
            if self.local is not None:
                self.local.mkdir(parents=True, exist_ok=True)
            filesystem, path = filesystem_of(probe.url, _PROBE_ATTEMPTS)
            with filesystem.open_output_stream(path, compression=None) as stream:
                stream.write(b"probe")
            with filesystem.open_input_file(path) as file:
                read = file.read()
            listed = filesystem.get_file_info(fs.FileSelector(path.rpartition("/")[0]))
            filesystem.delete_file(path)
            if read != b"probe" or path not in {info.path for info in listed}:
                raise HomeError(f"home {self}: what is written there is not found again; nothing was done")
        except (OSError, pa.ArrowException) as error:
            lacks, helps = (
                disk_trouble(error) or store_trouble(error) or (_one_line(error), "give another home")
            )
            raise HomeError(
                f"home {self}{self._where()}: {lacks}; nothing was done. {helps[0].upper()}{helps[1:]}"
            ) from None

    def _where(self) -> str:
        """The bucket and the endpoint, for an error."""
        if self.local is not None:
            return ""
        bucket = self.url.partition("://")[2].partition("/")[0]
        address = endpoint() if self.url.startswith("s3://") else None
        return f" (bucket {bucket}, endpoint {address or 'of the provider'})"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
