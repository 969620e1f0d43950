"""Record message logs by reading the topics (``record-messages``)."""
