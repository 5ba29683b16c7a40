"""Which member leads, which are in sync, and what is committed: decided without IO."""
