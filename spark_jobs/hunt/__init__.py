"""Hunt releases for client schedules that break a promise, and compare them."""
