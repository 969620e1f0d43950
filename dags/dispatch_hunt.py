"""Airflow finds the DAG ``dispatch_hunt`` by this file."""

from dispatch_airflow.dags.dispatch_hunt import dispatch_hunt

dispatch_hunt()
