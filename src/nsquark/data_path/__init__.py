"""What can be done with nsqd's data directory (`--data-path`) from outside: check, repair, print, copy it."""
