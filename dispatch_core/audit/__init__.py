"""Find anomalies in a dispatcher's log and judge promises: deliveries in, findings and verdicts out.

``catalogue`` names every kind of finding. ``deliveries`` finds order violations and duplicates, ``waits`` what waited too
long, ``balance`` uneven load. ``verdict`` turns findings into PASS, FAIL or UNKNOWN. Everything here is pure.
"""
