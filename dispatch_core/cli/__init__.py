"""The ``dispatch-audit`` command: one module per subcommand, however short, with ``add_arguments`` and ``run``."""

from typing import Final

#: Exit codes of every subcommand.
CLEAN: Final = 0
FINDINGS: Final = 1
COULD_NOT_JUDGE: Final = 2
