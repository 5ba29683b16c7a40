"""What the command line of every program shares: flags, log lines, the process."""
