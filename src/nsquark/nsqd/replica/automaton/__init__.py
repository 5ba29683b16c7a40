"""Which member leads, which are in sync, and what is committed: decided without IO."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
