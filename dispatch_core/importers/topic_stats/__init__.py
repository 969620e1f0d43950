"""Make the checkpoint of a log from ``pulsar-admin topics stats`` and ``stats-internal`` (``import-stats``)."""
