"""A follower's directory: fetched, kept up with the stream, promoted."""
