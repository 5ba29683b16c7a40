"""What `make run` starts: nsqlookupd, nsqd, and for show a small stream and a query that archives it."""
