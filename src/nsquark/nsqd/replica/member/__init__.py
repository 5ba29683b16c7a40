"""nsqd as a member of a replica group: it does what the automaton decides."""
