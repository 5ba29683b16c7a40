"""What NSQ's utilities share: their common flags, their log lines, and how a program runs and ends."""
