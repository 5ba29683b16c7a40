"""nsqlookupd: the directory of which nsqd has which topic."""
