"""Airflow finds the DAG ``dispatch_audit_maintenance`` by this file."""

from dispatch_airflow.dags.dispatch_audit_maintenance import dispatch_audit_maintenance

dispatch_audit_maintenance()
