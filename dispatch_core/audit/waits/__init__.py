"""Audit of waits: entries that wait, the reason, and the findings about those that wait too long."""
