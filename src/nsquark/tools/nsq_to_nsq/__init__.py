"""nsq_to_nsq: copies topics to other nsqds, and filters JSON on the way."""
