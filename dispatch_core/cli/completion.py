"""``dispatch-audit completion``: print what makes a shell complete the commands and options of ``dispatch-audit``.

The completion itself is done by argcomplete, which the shell calls through ``dispatch-audit`` with ``_ARGCOMPLETE`` set.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from typing import Final

from dispatch_core.cli import CLEAN

_PROGRAM: Final = "dispatch-audit"
#: Where each shell reads what is printed, for ``--help``.
_SHELLS: Final = {
    "bash": 'eval "$(dispatch-audit completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(dispatch-audit completion zsh)" in ~/.zshrc, behind compinit',
    "fish": "dispatch-audit completion fish > ~/.config/fish/completions/dispatch-audit.fish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``completion``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Print what makes a shell complete commands and options:\n\n" + "\n".join(
        f"  {how}" for how in _SHELLS.values()
    )
    parser.add_argument("shell", choices=list(_SHELLS))


def run(options: argparse.Namespace) -> int:
    """Print the shell's code; returns 0."""
    import argcomplete

    sys.stdout.write(argcomplete.shellcode([_PROGRAM], shell=options.shell))
    return CLEAN


def complete(parser_of: Callable[[str | None], argparse.ArgumentParser]) -> None:
    """Answer a shell that asks for completions, and exit; return at once if none does.

    ``parser_of``: makes the parser with the options of a subcommand.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser_of(_command_in(os.environ.get("COMP_LINE", ""))))


def _command_in(line: str) -> str | None:
    """Return the subcommand that a command line names.

    >>> _command_in("dispatch-audit --version"), _command_in("dispatch-audit audit 'my logs' --to")
    (None, 'audit')
    """
    try:
        words = shlex.split(line)
    except ValueError:  # a quotation mark that is still open
        words = line.split()
    return next((word for word in words[1:] if not word.startswith("-")), None)
