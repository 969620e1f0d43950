"""Bring log files into the landing folder, keep each contents once, and find the hours of its rows."""
