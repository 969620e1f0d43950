"""A world around a dispatcher: producers, storage, clients. What is decided in it, the dispatch core decides.

``scenario`` says what is asked for, ``publishing`` what is published when, ``churn`` who comes and goes, ``answers`` when a
consumer answers what it was sent. ``world`` and ``key_shared_loop`` are the compiled event loop, ``key_shared_run`` and
``failover_run`` the control plane around it; ``lines``, ``tables`` and ``recording`` turn what happens into logs.
"""
