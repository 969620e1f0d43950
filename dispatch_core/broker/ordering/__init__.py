"""How per-key order is kept when the owner of a hash changes. One file per rule."""
