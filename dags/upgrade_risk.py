"""Airflow finds the DAG ``upgrade_risk`` by this file."""

from dispatch_airflow.dags.upgrade_risk import upgrade_risk

upgrade_risk()
