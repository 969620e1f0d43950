"""Write the index page of the zoo, and the package's copy of it: ``python -m dispatch_core.cli.zoo docs/zoo``.

With ``--verdicts`` the files of the exhibits get the verdicts that the rules of each release give: look at what changes.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dispatch_core.hunt import zoo

_CHECKOUT: Final = Path(__file__).resolve().parents[2]


def texts_in(folder: Path) -> dict[str, str]:
    """Read the files of a folder's exhibits, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))}


def exhibits_in(folder: Path) -> list[zoo.Exhibit]:
    """Return the exhibits of a folder, by name."""
    return [zoo.parse(name, text) for name, text in texts_in(folder).items()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, of ``docs/zoo`` also the copy, and with ``--verdicts`` the exhibits."""
    parser = argparse.ArgumentParser(prog="python -m dispatch_core.cli.zoo", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verdicts", action="store_true", help="play each exhibit on each release")
    options = parser.parse_args(arguments)
    exhibits = exhibits_in(options.folder)
    if options.verdicts:
        for at, exhibit in enumerate(exhibits):
            own = next(iter(exhibit.verdicts))
            found = zoo.verdicts(exhibit)
            found = {
                own: found.get(own, []),
                **found,
            }  # its own verdict stays first, also where no release gets it
            verdicts = {name: tuple(ranges) for name, ranges in found.items() if name != zoo.KEPT}
            exhibits[at] = dataclasses.replace(exhibit, verdicts=verdicts)
            text = zoo.text_of_exhibit(exhibits[at])
            (options.folder / f"{exhibit.name}.toml").write_text(text, encoding="utf-8")
    (options.folder / "README.md").write_text(zoo.page(exhibits), encoding="utf-8")
    if options.folder.resolve() == _CHECKOUT / "docs" / "zoo":
        copy = Path(zoo.__file__).parent / zoo.COPY
        copy.write_text(zoo.copy_of(texts_in(options.folder)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
