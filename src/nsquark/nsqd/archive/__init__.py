"""Closed segments in an object store or another file system, and back from there."""
