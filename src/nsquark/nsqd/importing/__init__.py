"""Taking over the data directory of Go's nsqd: its disk queues become logs and journals."""
