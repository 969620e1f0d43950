"""Judge the audit's promises with Great Expectations (one module per promise), and send alerts.

Importing this package is cheap; Great Expectations is imported only when suites run.
"""
