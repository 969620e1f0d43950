"""Run a local Airflow for ``make run``, ``make up`` and ``make down``: SQLite, LocalExecutor, 127.0.0.1.

``python -m dispatch_airflow.local_run run`` starts it, triggers ``dispatch_audit`` for the sample's days, shows progress and
verdicts and ends all processes. ``up`` leaves it running, ``down`` ends it. All files are written below the home
(``DISPATCH_AUDIT_HOME``, by default ``.dispatch-audit`` in the repository).

``settings`` has folders and configuration, ``services`` is the process that holds Airflow's processes, ``control`` starts
and ends it, ``client`` makes the REST calls, ``watch`` shows the progress, ``sample`` finds the days to run, ``outcome``
prints the result. Linux only: it relies on ``/proc`` and ``prctl``.

``airflow standalone`` of Airflow 3.3 is not used. Its scheduler and triggerer serve logs on all addresses, at two fixed
ports, and no option of it prevents that. It ends its processes on Ctrl-C only, not on SIGTERM or when it is killed, and
goes on when one of them has ended. It starts the API server after the database is made, and always a triggerer, which
``run`` does not need. The rest of this package would be the same with it.
"""
