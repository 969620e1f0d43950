"""Columns, growing arrays and compiled code: the array tools of the core, which know nothing of Pulsar."""
