"""The log format: schema, reader and writers of log files, and one dispatcher's log as tables."""
