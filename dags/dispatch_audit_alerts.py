"""Airflow finds the DAG ``dispatch_audit_alerts`` by this file."""

from dispatch_airflow.dags.dispatch_audit_alerts import dispatch_audit_alerts

dispatch_audit_alerts()
