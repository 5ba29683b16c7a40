"""A primary's changes as frames, and what its followers ask of it."""
