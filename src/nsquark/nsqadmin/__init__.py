"""nsqadmin: a cluster of nsqds and nsqlookupds, for a browser and for scripts."""
