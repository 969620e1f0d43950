"""Audit of deliveries: order, duplicates and the log itself, batch by batch over a window of the log."""
