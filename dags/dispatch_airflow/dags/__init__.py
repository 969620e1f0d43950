"""The DAGs, as functions that make them. A file in a DAG folder calls them, as Airflow looks for DAGs in files only."""


def every_dag() -> None:
    """Make all DAGs, for a file of two lines in a DAG folder or bundle:

        from dispatch_airflow.dags import every_dag
        every_dag()

    They belong to the file that is being parsed.
    """
    from dispatch_airflow.dags.dispatch_audit import dispatch_audit
    from dispatch_airflow.dags.dispatch_audit_alerts import dispatch_audit_alerts
    from dispatch_airflow.dags.dispatch_audit_maintenance import dispatch_audit_maintenance
    from dispatch_airflow.dags.dispatch_audit_watch import dispatch_audit_watch
    from dispatch_airflow.dags.dispatch_hunt import dispatch_hunt
    from dispatch_airflow.dags.dispatch_what_if import dispatch_what_if
    from dispatch_airflow.dags.upgrade_risk import upgrade_risk

    dispatch_audit()
    dispatch_audit_alerts()
    dispatch_audit_maintenance()
    dispatch_audit_watch()
    dispatch_hunt()
    dispatch_what_if()
    upgrade_risk()
