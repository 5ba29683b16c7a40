"""The data directory of nsqd, and the threads that wait for the disk."""
