"""nsqd, the broker."""
