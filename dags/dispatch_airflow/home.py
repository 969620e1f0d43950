"""Places of one installation, loggers of tasks and errors of steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dispatch_core.cli.log_lines import OUTPUT, PROGRESS
from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from spark_jobs.location import Location

HOME_VARIABLE: Final = "DISPATCH_AUDIT_HOME"
#: Id of the Airflow connection (type Amazon Web Services) with the credentials of a home in an object store.
CONNECTION_VARIABLE: Final = "DISPATCH_AUDIT_HOME_CONNECTION"

#: Lines of a task for people; ``make run`` shows them on the terminal.
progress = logging.getLogger(PROGRESS)
#: All other lines of child processes.
output = logging.getLogger(OUTPUT)


class StepError(DispatchAuditError):
    """A step failed, and another attempt may succeed, such as after a Spark process that was killed."""


class ParameterError(DispatchAuditError):
    """A run's parameters name no interval, no source or no rules."""


def use_connection() -> None:
    """Put the credentials of the home's connection into the environment, for this process and those that it starts.

    Does nothing if ``DISPATCH_AUDIT_HOME_CONNECTION`` is not set. Raises ``ParameterError`` if Airflow does not have the
    connection. Nothing is logged.
    """
    connection_id = os.environ.get(CONNECTION_VARIABLE)
    if not connection_id or os.environ.get(_USED) == connection_id:
        return
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        raise ParameterError(
            f"{CONNECTION_VARIABLE} names the connection {connection_id!r}, which Airflow does not have; nothing was done. "
            "Create it (type Amazon Web Services), or unset the variable and set the credentials in the environment"
        ) from None
    extra = connection.extra_dejson
    given = {
        "AWS_ACCESS_KEY_ID": connection.login,
        "AWS_SECRET_ACCESS_KEY": connection.password,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_REGION": extra.get("region_name"),
        "AWS_ENDPOINT_URL": extra.get("endpoint_url"),
    }
    os.environ.update({name: str(value) for name, value in given.items() if value})
    os.environ[_USED] = connection_id


#: The connection whose credentials are in the environment already; child processes inherit both.
_USED: Final = "_DISPATCH_AUDIT_HOME_CONNECTION_USED"


@dataclass(frozen=True, slots=True)
class Home:
    """The folder or URL under which one installation keeps what it lands, writes and publishes.

    ``namespace``: the folder below ``root`` with all that belongs to one source (``sources.py``); empty for the source
    that the environment names, whose folders lie in ``root`` itself.
    """

    root: str
    namespace: str = ""

    def __post_init__(self) -> None:
        text = os.fspath(self.root)
        absolute = text.rstrip("/") if "://" in text else os.path.abspath(text)  # noqa: PTH100 - may be a URL
        object.__setattr__(self, "root", absolute)

    @classmethod
    def current(cls) -> Home:
        """Return the home that the environment names, by default ``.dispatch-audit`` in the working directory.

        If the environment names a connection for it, its credentials are put into the environment of this process.
        """
        use_connection()
        return cls(os.environ.get(HOME_VARIABLE) or ".dispatch-audit")

    @classmethod
    def of(cls, chosen: Mapping[str, str]) -> Home:
        """Return the home of a run, with the namespace that its first task chose."""
        return cls.current().within(chosen["namespace"])

    def within(self, namespace: str) -> Home:
        """Return the part of this home with one namespace."""
        return Home(self.root, namespace)

    @property
    def place(self) -> Location:
        """The folder of the namespace."""
        from spark_jobs.location import Location  # slow to import, and not needed to parse a DAG

        root = Location.of(self.root)
        return root / self.namespace if self.namespace else root

    @property
    def landing(self) -> Location:
        """Pulled log files, each kept once, and the intervals that use them."""
        return self.place / "landing"

    @property
    def warehouse(self) -> Location:
        """Delta tables, one folder per table."""
        return self.place / "warehouse"

    @property
    def data_docs(self) -> Location:
        """Great Expectations' pages."""
        return self.place / "data-docs"

    @property
    def reports(self) -> Location:
        """A page per subscription and interval, for people."""
        return self.place / "reports"

    @property
    def what_if(self) -> Location:
        """Comparisons of rules, one folder per run of ``dispatch_what_if``."""
        return self.place / "what-if"

    @property
    def hunts(self) -> Location:
        """Hunts of releases, one folder per run of ``dispatch_hunt``."""
        return self.place / "hunts"

    @property
    def alerts(self) -> Location:
        """Every alert that was raised, one JSON file each, by interval."""
        return self.place / "alerts"

    @property
    def outbox(self) -> Location:
        """Alerts that channels have not been sent yet."""
        return self.place / "outbox"

    @property
    def turns(self) -> Location:
        """The table that says which run is sending alerts."""
        return self.place / "turns"
