"""A follower's directory: fetched, kept up with the stream, promoted."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
