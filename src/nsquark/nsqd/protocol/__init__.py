"""The TCP side of nsqd: connections, their commands, negotiation, upgrades and authorization."""
