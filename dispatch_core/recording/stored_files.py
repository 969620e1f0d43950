"""Open stored files by their path, or by their URL in an object store (``s3://bucket/key``).

A path is opened on this machine; a URL through ``pyarrow.fs``. Address, region and credentials of a store come from the
environment, as for its other clients: ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN`` or a role of the machine. They are never part of a URL or an error text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from dispatch_core.errors import DispatchAuditError

#: Variables with the address and the credentials of a store. Workers on other machines get them from the driver.
VARIABLES: Final = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
#: Schemes of the stores that can be opened.
SCHEMES: Final = ("s3", "gs", "abfs", "abfss")
_LOCAL: Final = fs.LocalFileSystem()
#: Attempts per request: with growing pauses between them, a store may be away for about a minute.
_ATTEMPTS: Final = 10
_CONNECT_S: Final = 10
_REQUEST_S: Final = 60


class StoreError(DispatchAuditError):
    """A URL that names no store this code knows."""


def is_url(where: str) -> bool:
    """True for the URL of an object store, false for a path of this machine."""
    return "://" in where


def endpoint() -> str | None:
    """Return the address of the S3-compatible store that the environment names; None for Amazon's own."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def region() -> str | None:
    """Return the region that the environment names."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def filesystem_of(where: str, attempts: int = _ATTEMPTS) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path in it. ``attempts``: per request to a store."""
    if not is_url(where):
        return _LOCAL, where
    scheme, _, rest = where.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES or not bucket:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise StoreError(
            f"{where}: no store of this kind is known; write a path, or a URL that begins with {known}"
        )
    if scheme == "s3":
        key_id = os.environ.get("AWS_ACCESS_KEY_ID")
        return _s3(endpoint(), region(), key_id, os.getpid(), attempts), f"{bucket}/{key}".rstrip("/")
    filesystem, base = _other(scheme, bucket, os.getpid())
    return filesystem, f"{base}/{key}".rstrip("/")


@lru_cache(maxsize=8)
def _s3(
    address: str | None, where: str | None, _key_id: str | None, _process: int, attempts: int
) -> fs.FileSystem:
    """Make the file system once for each process, because its threads do not survive a fork."""
    scheme, _, host = (address or "").rpartition("://")
    return fs.S3FileSystem(
        endpoint_override=host.rstrip("/") or None,
        scheme=scheme or "https",
        region=where or ("us-east-1" if address else None),
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        allow_delayed_open=True,  # a small object is one request, not three
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
    )


@lru_cache(maxsize=8)
def _other(scheme: str, bucket: str, _process: int) -> tuple[fs.FileSystem, str]:
    filesystem, base = fs.FileSystem.from_uri(f"{scheme}://{bucket}")
    return filesystem, base.rstrip("/")


def open_stored(where: str) -> pa.NativeFile:
    """Open a stored file for reading at any place."""
    filesystem, path = filesystem_of(where)
    return filesystem.open_input_file(path)


def parquet_file(where: str, **options: Any) -> pq.ParquetFile:
    """Open a stored Parquet file; from a store the columns of a row group are fetched together."""
    if not is_url(where):
        return pq.ParquetFile(where, **options)
    return pq.ParquetFile(open_stored(where), pre_buffer=True, **options)


def parquet_footer(where: str) -> pq.FileMetaData:
    """Read the footer of a stored Parquet file."""
    return pq.read_metadata(open_stored(where) if is_url(where) else where)


def parquet_rows(where: str, **options: Any) -> pa.Table:
    """Read a stored Parquet file, with the options of ``pyarrow.parquet.read_table``."""
    filesystem, path = filesystem_of(where)
    return pq.read_table(path, filesystem=filesystem, partitioning=None, **options)


def parquet_dataset(files: Sequence[str]) -> Any:
    """Open stored Parquet files of one store, at least one, as a ``pyarrow.dataset.Dataset``."""
    import pyarrow.dataset as ds  # brings pandas along, which the tasks of a replay do without

    filesystem = filesystem_of(files[0])[0]
    return ds.dataset([filesystem_of(file)[1] for file in files], format="parquet", filesystem=filesystem)
