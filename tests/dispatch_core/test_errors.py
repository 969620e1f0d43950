"""Errors that count as faults of the disk, in exceptions of any library."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from dispatch_core.errors import (
    DiskError,
    DispatchAuditError,
    disk_errors_named,
    disk_trouble,
    names_disk_errors,
)


def test_a_full_disk_is_reported_with_the_path_and_what_helps() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "deliveries/part-1.parquet")
    with (
        pytest.raises(
            DiskError,
            match=r"^replay: deliveries/part-1.parquet: No space left on device.*make room and run it",
        ),
        disk_errors_named("replay"),
    ):
        raise full


def test_the_words_of_arrow_and_of_a_cause_are_found() -> None:
    assert disk_trouble(OSError("Error writing bytes. Detail: [errno 30] Read-only file system")) is not None
    foreign = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    assert disk_trouble(foreign("java.io.IOException: No space left on device\n\tat x")) is not None
    outer = RuntimeError("a step failed")
    outer.__cause__ = OSError(errno.EROFS, "Read-only file system")
    assert disk_trouble(outer) == ("Read-only file system", "give a folder that can be written to")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        ValueError("No space left on device"),  # a value with these words is no error of the disk
        pa.ArrowInvalid("not a Parquet file"),
    ],
)
def test_anything_else_stays_what_it_is(error: Exception) -> None:
    assert disk_trouble(error) is None
    with pytest.raises(type(error)), disk_errors_named("replay"):
        raise error


def test_an_error_that_names_the_cause_is_not_wrapped() -> None:
    error = DispatchAuditError("full, says the copy")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DispatchAuditError) as caught, disk_errors_named("pull"):
        raise error
    assert caught.value is error


def test_a_function_keeps_its_name_and_its_result(tmp_path: Path) -> None:
    @names_disk_errors("pull")
    def listed(folder: Path) -> list[Path]:
        """List the files of a folder."""
        return list(folder.iterdir())

    assert (listed.__name__, listed(tmp_path)) == ("listed", [])


def test_the_folder_that_a_function_works_on_is_named(tmp_path: Path) -> None:
    @names_disk_errors("replay")
    def full(_spark: object, _warehouse: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskError) as caught:
        full(None, tmp_path)
    assert str(caught.value).startswith(
        f"replay: {tmp_path}: No space left on device. What was there before stands"
    )
