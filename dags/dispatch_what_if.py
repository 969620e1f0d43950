"""Airflow finds the DAG ``dispatch_what_if`` by this file."""

from dispatch_airflow.dags.dispatch_what_if import dispatch_what_if

dispatch_what_if()
