"""What would have happened under other rules: the recorded load and clients, in front of another dispatcher.

``recorded`` and ``clients`` read from a log what was asked of the broker, never what it sent; ``run`` lets the dispatch core
answer the same under any rules. ``rules`` names these, ``measure`` says what became of a load, ``compare`` sets recorded and
simulated side by side, and ``tell`` prints that for people.
"""
