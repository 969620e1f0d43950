"""The log format, its reader, and a dispatcher's log as tables."""
