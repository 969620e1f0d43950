"""Predict an interval's deliveries under other rules and compare them."""
