"""SIGKILL of a real nsqd under load, again and again, and what must be true of its messages all the same.

`load` has the clients, which enter what they send and get in a history (`history`). `checker` reads the
history and finds what nothing explains. `series` has the rounds on one data directory, `running` the series
of a run, and `forks` makes starting nsqd cheap. `mutants` are nsqds with a fault on purpose, which prove that
the checker sees it.
"""
