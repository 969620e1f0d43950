"""Judgement of the deliveries of a log without a trace: reads and rounds are inferred."""
