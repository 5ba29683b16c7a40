"""Who leads, who is in sync and what is committed, decided without IO."""
