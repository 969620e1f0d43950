"""What ``pulsar-admin topics stats`` and ``stats-internal`` say of a subscription, as the checkpoint of a log."""
