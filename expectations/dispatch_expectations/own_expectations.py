"""Read the user's own expectations: a YAML file that the policy names (``expectations: FILE``).

Each entry names one of Great Expectations' core expectations by its type, with its arguments, and a table that it is about.
A file of data instead of code: it is checked as a whole before anything is judged, each mistake with its line, and it cannot
run anything. What needs code belongs in a check of a promise. ``docs/verdicts.md`` describes the file.
"""

from __future__ import annotations

import html
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from dispatch_core.audit.policy.yaml_reader import YamlFileError, YamlReader, shown
from dispatch_core.audit.promises.promise import FAIL
from dispatch_core.cli.policy_file import content_of
from dispatch_expectations.result_tables import ADDED, COLUMNS

if TYPE_CHECKING:
    from great_expectations.checkpoint.actions import ValidationAction
    from great_expectations.expectations.expectation import Expectation

#: What a failure does: the promise ``custom`` FAILs, or stays PASS and its reason says so.
WARN: Final = "warn"
ON_FAILURE: Final = (FAIL, WARN)
_SEVERITIES: Final = ("critical", "warning", "info")
_MOST_ENTRIES: Final = 200
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
#: Arguments of an expectation that are given beside ``kwargs``, or not at all.
_NOT_ARGUMENTS: Final = (
    "meta",
    "notes",
    "description",
    "severity",
    "result_format",
    "catch_exceptions",
    "id",
    "windows",
)
#: Arguments that name a column, or several.
_COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list", "column_set")
#: Fields of actions that are secrets: only the name of an environment variable may stand in the file.
_SECRETS: Final = re.compile(r"webhook|token|password")
_VARIABLE: Final = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
#: Great Expectations' actions that can be named. Others write the address that they post to, a secret, into the log.
ACTIONS: Final = ("email", "slack")


class OwnExpectationsError(YamlFileError):
    """A file of expectations that cannot be used."""

    headline = "the file of expectations cannot be used; nothing was judged:"
    next_step = "Correct the file, or take the key expectations out of the audit policy."


@dataclass(frozen=True)
class OwnExpectation:
    """One entry of the file; ``line``: where it stands. ``on_failure``: FAIL or ``warn``."""

    name: str
    table: str
    on_failure: str
    line: int
    words: str
    expectation: Expectation


@dataclass(frozen=True)
class OwnExpectations:
    """The entries of a file, and Great Expectations' actions that the checkpoint runs after its own."""

    source: str
    expectations: tuple[OwnExpectation, ...] = ()
    actions: tuple[ValidationAction, ...] = field(default=(), repr=False)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that the entries are about, each once."""
        return tuple(dict.fromkeys(entry.table for entry in self.expectations))


def load_own_expectations(path: Path) -> OwnExpectations:
    """Read a file. Raises ``OwnExpectationsError`` with every problem."""
    return _Reader(str(path), content_of(path, OwnExpectationsError)).read()


class _Reader(YamlReader):
    error = OwnExpectationsError

    def read(self) -> OwnExpectations:
        root = self.parse()
        top = self.mapping(root, "(file)", ("version", "expectations", "actions"))
        self.check_version(root, top)
        entries = [
            self._entry(node, f"expectations[{index}]")
            for index, node in enumerate(self._items(top, "expectations"))
        ]
        names: set[str] = set()
        for index, (node, entry) in enumerate(zip(self._items(top, "expectations"), entries, strict=True)):
            if entry is not None and entry.name in names:
                self.complain(
                    node, f"expectations[{index}].name", f"{entry.name!r} is taken; names are unique"
                )
            names |= {entry.name} if entry is not None else set()
        actions = [
            self._action(node, f"actions[{index}]") for index, node in enumerate(self._items(top, "actions"))
        ]
        if self.problems:
            raise OwnExpectationsError(self.problems)
        return OwnExpectations(
            self.path,
            tuple(entry for entry in entries if entry is not None),
            tuple(action for action in actions if action is not None),
        )

    def _items(self, top: dict[str, yaml.Node], name: str) -> list[yaml.Node]:
        node = top.get(name)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.complain(node, name, "must be a list")
            return []
        if len(node.value) > _MOST_ENTRIES:
            self.complain(node, name, f"are {len(node.value)}; the limit is {_MOST_ENTRIES}")
            return []
        return list(node.value)

    def _entry(self, node: yaml.Node, where: str) -> OwnExpectation | None:
        known = ("name", "table", "type", "kwargs", "severity", "on_failure", "description")
        before = len(self.problems)
        head = self.mapping(node, where, known)
        name = self.text(node, head, where, "name", None)
        if name and not _NAME.fullmatch(name):
            self.complain(head["name"], f"{where}.name", "must be lower-case letters, digits, - or _")
        table = self._choice(node, head, where, "table", tuple(COLUMNS), None)
        severity = self._choice(node, head, where, "severity", _SEVERITIES, "critical")
        on_failure = self._choice(node, head, where, "on_failure", ON_FAILURE, FAIL)
        given = self.text(node, head, where, "description", "")
        types = _core_expectations()
        kind = self._choice(node, head, where, "type", tuple(types), None)
        arguments = self._arguments(head.get("kwargs"), f"{where}.kwargs", table)
        if len(self.problems) > before:
            return None
        description = {"description": html.escape(given, quote=False)} if given else {}
        expectation = self._make(
            head.get("kwargs", node),
            f"{where}.kwargs",
            types[kind],
            {**arguments, "severity": severity, "meta": {"table": table, "own": name}, **description},
        )
        if expectation is None:
            return None
        return OwnExpectation(name, table, on_failure, node.start_mark.line + 1, given or kind, expectation)

    def _choice(
        self,
        item: yaml.Node,
        head: dict[str, yaml.Node],
        where: str,
        name: str,
        choices: tuple[str, ...],
        default: str | None,
    ) -> str:
        value = self.text(item, head, where, name, default)
        if value and value not in choices:
            listed = ", ".join(choices) if len(choices) < 10 else "a core expectation of Great Expectations"
            self.complain(head[name], f"{where}.{name}", f"must be {listed}, not {value[:60]!r}")
        return value

    def _arguments(self, node: yaml.Node | None, where: str, table: str) -> dict[str, Any]:
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, where, f"must be a mapping of arguments, not {shown(node)}")
            return {}
        arguments: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in _NOT_ARGUMENTS:
                self.complain(key, f"{where}.{name}", "is no argument that can be given here")
                continue
            arguments[name] = yaml.SafeLoader("").construct_document(value)
            if name in _COLUMN_ARGUMENTS and table in COLUMNS:
                named = arguments[name] if isinstance(arguments[name], list) else [arguments[name]]
                columns = tuple(dict.fromkeys((*COLUMNS[table], *ADDED)))
                for column in named:
                    if column not in columns:
                        self.complain(
                            value,
                            f"{where}.{name}",
                            f"{table} has no column {str(column)[:60]!r}, only {', '.join(columns)}",
                        )
        return arguments

    def _make(self, node: yaml.Node, where: str, kind: type[Any], arguments: dict[str, Any]) -> Any | None:
        """Make an expectation or an action; what Great Expectations refuses becomes problems."""
        from great_expectations.compatibility.pydantic import ValidationError

        try:
            return kind(**arguments)
        except ValidationError as error:
            for refused in error.errors():
                place = ".".join(str(part) for part in refused["loc"] if part != "__root__")
                self.complain(_at(node, refused["loc"]), f"{where}.{place}".rstrip("."), str(refused["msg"]))
        except (TypeError, ValueError) as error:
            self.complain(node, where, str(error))
        return None

    def _action(self, node: yaml.Node, where: str) -> Any | None:
        from great_expectations.checkpoint import actions

        types = {"email": actions.EmailAction, "slack": actions.SlackNotificationAction}
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, where, f"must be a mapping, not {shown(node)}")
            return None
        before = len(self.problems)
        head = {str(key.value): value for key, value in node.value}
        kind = self._choice(node, head, where, "type", ACTIONS, None)
        fields = {name: yaml.SafeLoader("").construct_document(value) for name, value in head.items()}
        for name, value in fields.items():
            variable = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
            if variable and not os.environ.get(variable[1]):
                self.complain(head[name], f"{where}.{name}", f"{variable[1]} is not set in the environment")
            elif _SECRETS.search(name) and not variable:
                problem = "must be ${NAME} of an environment variable: a secret does not belong in this file"
                self.complain(head[name], f"{where}.{name}", problem)
        if len(self.problems) > before:
            return None
        return self._make(node, where, types[kind], {"name": fields.get("name", kind), **fields})


def _at(node: yaml.Node, place: tuple[Any, ...]) -> yaml.Node:
    """Return the node of a field in a mapping, else the mapping."""
    if isinstance(node, yaml.MappingNode) and place:
        return next((value for key, value in node.value if key.value == place[0]), node)
    return node


def _core_expectations() -> dict[str, type[Expectation]]:
    """Return Great Expectations' own expectations by type, without those that need SQL or several batches."""
    import great_expectations.expectations as gxe

    left_out = ("unexpected_rows_expectation", "expect_query_results_to_match_comparison")
    types: dict[str, type[Expectation]] = {}
    for kind in vars(gxe).values():
        name = getattr(kind, "expectation_type", "")
        if name and name not in left_out:
            types[name] = kind
    return types
