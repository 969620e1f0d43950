"""Airflow finds the DAG ``dispatch_audit``, and those of further sources, by this file."""

from dispatch_airflow.dags.dispatch_audit import dispatch_audit

dispatch_audit()
