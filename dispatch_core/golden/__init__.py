"""Golden vectors: what the broker's own classes answered, and whether this core answers the same.

A vector file is gzip'd JSON Lines: a header, then one independent history per line (``vectors``). For each kind of history
there is a player that drives the core through the operations and gives one answer per step (``kinds``); ``runner``
compares these with the recorded ones, for every release the file holds for.
"""
