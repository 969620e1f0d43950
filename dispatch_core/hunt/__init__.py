"""Hunt: search client schedules for the shortest one that breaks a promise of a release.

``schedule`` has the steps of a schedule, ``ownership`` who owns which key after which joins and leaves, ``world`` the state
that steps change, ``broker_steps`` (Failover: ``failover_steps``) what the broker does at each of them, ``promises`` what
may not happen, ``search`` the search and the shrinking, ``unkeyed`` that of Failover and Shared, ``replayed`` the same
schedule on the dispatcher of the core, with the log that it writes, ``hunts`` what was found, ``campaign`` the comparison of
releases, ``coverage`` the rules that schedules go through.
"""
