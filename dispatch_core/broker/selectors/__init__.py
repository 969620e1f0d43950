"""Selectors: the owner of each part of the hash space (Key_Shared), the active consumer (Failover). Plain Python.

Consumers are small integers here (the log's numbers); a consumer that rejoins has a new number.
"""
