"""Sockets and what lies between them and a protocol: addresses, listeners, TLS and compression."""
