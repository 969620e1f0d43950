"""Turn the errors of steps into Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dispatch_airflow.home import StepError
from dispatch_core.errors import DispatchAuditError


@contextmanager
def clear_failure() -> Iterator[None]:
    """Fail without another attempt where the input is wrong; another attempt only where it may help."""
    try:
        yield
    except StepError as error:
        raise AirflowException(str(error)) from error
    except DispatchAuditError as error:
        raise AirflowFailException(str(error)) from error
