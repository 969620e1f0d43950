"""Checkpoints of logs from ``pulsar-admin topics stats`` and ``stats-internal``."""
