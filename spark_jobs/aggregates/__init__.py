"""Aggregate over consumers and dispatchers: the tables ``balance`` and ``waits``, and findings of uneven load."""
