"""nsq_to_http: one HTTP request for each message of a topic."""
