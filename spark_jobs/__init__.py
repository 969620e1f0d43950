"""Ingest, replay and aggregates as Spark jobs over one warehouse of Delta tables.

Importing this package is cheap: ``pyspark`` is imported by the modules that need it, never here. ``pull``,
``intervals`` and ``warehouse`` do without a JVM.
"""
