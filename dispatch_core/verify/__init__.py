"""Feed a recording's inputs into the core and compare every decision the broker made with the core's.

``inputs`` draws the line between what the core may read and what is only compared; ``tally`` counts; ``key_shared`` and
``single_active`` drive the two dispatchers; ``runner`` picks the right one for a log.
"""
