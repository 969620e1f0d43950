"""Feed a recording's inputs into the core and compare every decision the broker made with the core's.

``inputs`` separates the fields that the core may read from those that are only compared; ``tally`` counts decisions.
``trace`` compares a dispatcher trace decision by decision; ``without_trace`` judges the deliveries of a log without one.
"""
