"""Run a local Airflow for ``make run``, ``make up`` and ``make down``: SQLite, LocalExecutor, 127.0.0.1.

``python -m dispatch_airflow.local_run run`` starts it, triggers ``dispatch_audit`` for the sample's days, shows progress and
verdicts and ends all processes. ``up`` leaves it running, ``down`` ends it. All files are written below the home
(``DISPATCH_AUDIT_HOME``, by default ``.dispatch-audit`` in the repository).

``settings`` has folders and configuration, ``services`` is the process that holds Airflow's processes, ``control`` starts
and ends it, ``client`` makes the REST calls, ``watch`` shows the progress, ``sample`` finds the days to run, ``outcome``
prints the result. Linux only: it relies on ``/proc`` and ``prctl``.
"""
