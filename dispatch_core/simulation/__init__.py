"""Simulation of a world around a dispatcher: producers, storage, clients. The broker model makes all decisions.

``scenario`` has the parameters, ``publishing`` the messages and their times, ``churn`` the joins and leaves, ``answers`` the
times at which consumers acknowledge. ``world``, ``key_shared_loop``, ``deliveries`` and ``failover_loop`` are the compiled
event loops. The control plane around them is in ``key_shared_run``, ``shared_run`` and ``failover_run``, on top of
``dispatcher_run`` and ``multiple_consumers_run``. ``kinds``, ``tables`` and ``sink`` turn events into logs; ``synthetic``
draws the input and ``generate`` writes recordings.
"""
