"""Run the pipeline in Airflow: tasks, alerts, web pages, and a local Airflow for ``make run``.

``dags`` has the DAGs: parameters and the order of tasks. The files by which Airflow finds them lie beside this package
(``dags/*.py``), or in the user's own DAG folder. The tasks call ``steps``, ``stages`` and ``notify``, which can be imported
without Airflow. ``local_run`` starts an Airflow of its own.
"""
