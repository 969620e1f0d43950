"""Golden vectors: answers of the broker's own classes, compared with those of this core.

A vector file is gzip'd JSON Lines: a header, then an independent history per line (``vectors``). Each kind of history has a
player that drives the core through the operations and yields an answer per step (``hashes``, ``selectors``, ``failover``,
``draining``). ``runner`` compares these with the recorded answers, for every release that the file holds for.
"""
