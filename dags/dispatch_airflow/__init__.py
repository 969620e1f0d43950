"""The pipeline as Airflow runs it: tasks, alerts, web pages, and a local Airflow for ``make run``.

The DAG files beside this package (``dags/*.py``) name parameters and the order of tasks; Airflow reads them by their path.
``steps``, ``stages`` and ``notify`` are what the tasks call (importable without Airflow); ``local_run`` starts an Airflow
of its own.
"""
