"""A replay: when each message is published, and how far the replay is."""
