"""What `make run` starts: `nsquark up`, and for show a small stream and a query that archives it."""
