"""Verify landed files, remove what is no longer needed, and compact tables."""
