"""The server: how a request is read, routed and answered, in time and within limits."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
