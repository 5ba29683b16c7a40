"""nsqd as a member of a replica group: it does what the automaton decides."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
