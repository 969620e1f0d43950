"""Control plane: who owns which part of the hash space (Key_Shared), who is active (Failover). Plain Python.

Consumers are small integers here (the log's numbers); a consumer that rejoins is a new number.
"""
