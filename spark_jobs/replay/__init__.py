"""Replay every dispatcher of an interval and publish the result tables."""
