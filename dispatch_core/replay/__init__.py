"""Replay: one dispatcher's log in, the result tables out."""
