"""Predict how the clients and the load of a recorded log would have fared under other rules (``dispatch-audit what-if``).

``recorded`` reads from a log what clients and producers did, and none of the broker's decisions. ``run`` simulates a
dispatcher with them, by the same rule functions as ``verify``. ``compare`` puts recording and simulations side by side.
"""
