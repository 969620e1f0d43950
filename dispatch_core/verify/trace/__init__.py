"""Comparison of a dispatcher trace with the rules, decision by decision."""
