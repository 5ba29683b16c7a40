"""A primary's changes as frames, and what its followers ask of it."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
