"""``python own_namespace.py [OPTION…] -- COMMAND…``: run a command that sees one machine's folder and no other's.

A machine is a folder below a common one, say ``machines/scheduler``. The command gets a mount namespace of its own, in which

* ``machines`` is empty but for the machine's folder, at the path that it has for everybody;
* ``/tmp`` is the folder ``tmp`` of the machine;
* what was kept by name, and would be hidden with ``/tmp``, is at its path;
* files may lie over others, in this namespace only.

The process is replaced by the command, so its id, its parent and its signals stay. It needs the right to mount, or else user
namespaces. Uses the standard library only, because it runs before every process of the tests.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_NEW_MOUNTS: Final = 0x00020000
_NEW_USERS: Final = 0x10000000
_BIND: Final = 0x1000
_RECURSIVE: Final = 0x4000
_PRIVATE: Final = 1 << 18
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def command_line(
    machine: Path,
    command: Sequence[str],
    *,
    inside: str | None = None,
    keep: Sequence[Path] = (),
    over: Sequence[tuple[Path, Path]] = (),
) -> list[str]:
    """Return the command that runs ``command`` on a machine.

    ``machine``: its folder. ``inside``: the name that the folder has in the namespace, if it is another one. ``keep``: what
    everybody sees. ``over``: pairs of files; in the namespace the first one is found under the path of the second one.
    """
    at = machine if inside is None else machine.parent.parent / inside
    words = [sys.executable, "-I", str(Path(__file__).resolve()), "--folder", str(machine), "--at", str(at)]
    for path in keep:
        words += ["--keep", str(path)]
    for source, target in over:
        words += ["--over", str(source), str(target)]
    return [*words, "--", *command]


def why_not(folder: Path) -> str | None:
    """Return why this user cannot make such a namespace on this machine; None if it is possible."""
    machine = folder / "probe"
    (machine / "tmp").mkdir(parents=True)
    done = subprocess.run(
        command_line(machine, ["true"]), capture_output=True, text=True, check=False, timeout=60
    )
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]


def main() -> None:
    """Make the namespace and become the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--at", type=Path, required=True)
    parser.add_argument("--keep", type=Path, action="append", default=[])
    parser.add_argument("--over", type=Path, nargs=2, action="append", default=[])
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    try:
        _unshare()
        _hide(asked.folder, asked.at, asked.keep, asked.over)
    except OSError as error:
        sys.exit(f"no mount namespace could be made: {error}")
    os.chdir(asked.at)
    os.execvp(asked.command[0], asked.command)


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_MOUNTS) != 0:
        if _LIBC.unshare(_NEW_MOUNTS | _NEW_USERS) != 0:
            raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount(None, Path("/"), None, _RECURSIVE | _PRIVATE)


def _hide(folder: Path, at: Path, keep: Sequence[Path], over: Sequence[Sequence[Path]]) -> None:
    for source, target in over:
        _mount(source, target, None, _BIND)
    # A path may be hidden by what is mounted next; what is open can still be reached.
    own = _opened(folder)
    kept = [(path, _opened(path)) for path in keep]
    _mount(folder / "tmp", Path("/tmp"), None, _BIND)
    at.parent.mkdir(parents=True, exist_ok=True)
    _mount(None, at.parent, "tmpfs", 0)
    at.mkdir()
    _mount(own, at, None, _BIND | _RECURSIVE)
    for path, source in kept:
        # An earlier process of the machine has left an empty folder at the path of what was kept under /tmp.
        path.mkdir(parents=True, exist_ok=True)
        if not path.samefile(source):
            _mount(source, path, None, _BIND | _RECURSIVE)


def _opened(folder: Path) -> Path:
    return Path(f"/proc/self/fd/{os.open(folder, os.O_PATH)}")


def _mount(source: Path | None, target: Path, kind: str | None, flags: int) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _LIBC.mount(*texts, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount on {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
