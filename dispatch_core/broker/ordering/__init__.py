"""Rules that keep per-key order when the owner of a hash changes, one file per rule."""
