"""nsqd among its nsqlookupds."""
