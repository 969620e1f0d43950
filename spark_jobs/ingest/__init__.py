"""Read landed log files into the tables ``messages``, ``consumer_events`` and ``quarantine``, earlier intervals first."""
