"""Airflow finds the DAG ``dispatch_audit_watch`` by this file."""

from dispatch_airflow.dags.dispatch_audit_watch import dispatch_audit_watch

dispatch_audit_watch()
