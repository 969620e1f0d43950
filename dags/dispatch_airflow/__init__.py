"""Run the pipeline in Airflow: tasks, alerts, web pages, and a local Airflow for ``make run``.

The DAG files beside this package (``dags/*.py``) define parameters and the order of tasks; Airflow reads them by their
path. The tasks call ``steps``, ``stages`` and ``notify``, which can be imported without Airflow. ``local_run`` starts an
Airflow of its own.
"""
