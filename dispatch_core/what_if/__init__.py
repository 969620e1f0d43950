"""What would have happened under other rules: the clients and the load of a log, simulated again.

``recorded`` takes from a log what clients and producers did, and nothing of what the broker decided; ``run`` simulates a
dispatcher under them, by the rules that every other part of this package uses.
"""
