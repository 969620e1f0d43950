"""Say what holds a subscription's messages, from the broker's statistics alone, from a recorded log, or from both."""
