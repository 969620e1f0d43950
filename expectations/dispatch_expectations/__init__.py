"""The audit's promises as Great Expectations suites: one module per promise, one verdict per promise and dispatcher.

Importing this package is cheap; Great Expectations itself is imported only where a suite is run.
"""
