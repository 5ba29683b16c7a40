"""The TCP side of nsqd: connections, their commands, negotiation, upgrades and authorization."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
