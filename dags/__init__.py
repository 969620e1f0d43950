"""Airflow's view of the pipeline: parameters, order of tasks, alerts. The work is done by the other packages.

``dispatch_audit.py`` is the DAG, ``steps.py`` and ``notify.py`` are what its tasks call (importable without Airflow),
``local_run/`` starts an Airflow of its own for ``make run``.
"""
