"""Read the bytes of a YAML file as a tree of nodes, so that every problem can name its line. All are reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final

import yaml

from dispatch_core.errors import DispatchAuditError

_MAX_BYTES: Final = 1 << 20
_MOST_PROBLEMS: Final = 100
_LONGEST_SHOWN: Final = 500


class YamlFileError(DispatchAuditError):
    """A file that cannot be used. ``problems`` holds one ``file:line: field: what is wrong`` each."""

    #: First line of the message, and what to do about it.
    headline: ClassVar[str]
    next_step: ClassVar[str]

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = [self.headline, *(f"  {problem}" for problem in self.problems), self.next_step]
        super().__init__("\n".join(lines))


class YamlReader:
    """Collect the problems of one file; ``error`` is raised with all of them.

    ``path``: the file's name for messages; ``raw``: its content.
    """

    error: ClassVar[type[YamlFileError]]

    def __init__(self, path: str, raw: bytes) -> None:
        self.path = path
        self.problems: list[str] = []
        self._raw = raw

    def parse(self) -> yaml.Node:
        """Return the root of the file's tree; raise ``error`` for a file that is not one YAML document."""
        raw = self._raw
        if len(raw) > _MAX_BYTES:
            raise self.error([f"{self.path}: is {len(raw)} bytes long; the limit is {_MAX_BYTES}"])
        try:
            node: yaml.Node | None = yaml.compose(raw.decode("utf-8"), Loader=yaml.SafeLoader)
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise self.error([f"{self.path}:{line}: (file): is not UTF-8 text"]) from error
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise self.error([f"{self.path}:{line}: (file): is not YAML: {error.problem}"]) from error
        except RecursionError as error:
            raise self.error([f"{self.path}:1: (file): is nested too deeply"]) from error
        except yaml.YAMLError as error:
            raise self.error([f"{self.path}:1: (file): is not YAML: {error}"]) from error
        if node is None:
            raise self.error([f"{self.path}:1: (file): is empty; write at least: version: 1"])
        return node

    def complain(self, node: yaml.Node, field: str, problem: str) -> None:
        """Add a problem of a field, at the line of a node."""
        where = f"{self.path}:{node.start_mark.line + 1}"
        self.problems.append(f"{where}: {field[:_LONGEST_SHOWN]}: {problem[:_LONGEST_SHOWN]}")
        if len(self.problems) == _MOST_PROBLEMS:
            self.problems.append(f"{where}: (file): has too many problems; the rest was not read")
            raise self.error(self.problems)

    def mapping(self, node: yaml.Node, field: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
        """Return values by key; unknown and repeated keys and non-mappings become problems."""
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, field, f"must be a mapping with {', '.join(known)}")
            return {}
        found: dict[str, yaml.Node] = {}
        prefix = "" if field == "(file)" else f"{field}."
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                self.complain(
                    key, f"{prefix}{name or '?'}", f"is unknown; the nearest known name is {near!r}"
                )
            elif name in found:
                self.complain(key, f"{prefix}{name}", "is given twice; keep one")
            else:
                found[name] = value
        return found

    def check_version(self, root: yaml.Node, top: dict[str, yaml.Node]) -> None:
        """Require ``version: 1``."""
        version = top.get("version")
        if version is None:
            self.complain(root, "version", "is missing; write: version: 1")
        elif not (isinstance(version, yaml.ScalarNode) and version.value == "1"):
            self.complain(version, "version", f"must be 1, not {shown(version)}")

    def text(
        self, item: yaml.Node, head: dict[str, yaml.Node], field: str, name: str, default: str | None
    ) -> str:
        """Return the text of a field of ``item``; a missing one without a default becomes a problem."""
        node = head.get(name)
        if node is None:
            if default is None:
                self.complain(item, f"{field}.{name}", "is missing")
            return default or ""
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            self.complain(node, f"{field}.{name}", f"must be a text, not {shown(node)}")
            return default or ""
        return str(node.value)


def shown(node: yaml.Node) -> str:
    """Write a value for a message."""
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value[:60])
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
