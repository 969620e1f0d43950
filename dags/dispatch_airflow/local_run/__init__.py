"""An Airflow of one's own for ``make run``, ``make up`` and ``make down``: SQLite, LocalExecutor, 127.0.0.1.

``python -m dispatch_airflow.local_run run`` starts it, triggers ``dispatch_audit`` for the sample's days, shows progress and
verdicts and ends all it started. ``up`` leaves it running, ``down`` ends it. Everything it writes lies under the home
(``DISPATCH_AUDIT_HOME``, by default ``.dispatch-audit`` in the repository).

``settings`` where and with which configuration, ``services`` the process that holds Airflow's processes, ``control``
starting and ending it, ``client`` the REST calls, ``watch`` the progress, ``sample`` what to run, ``outcome`` what came
out. Linux only: it relies on ``/proc`` and ``prctl``.
"""
