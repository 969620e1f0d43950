"""Benchmarks: what a replay costs beside the copy of its bytes. ``make bench``; docs/performance.md has the figures."""
