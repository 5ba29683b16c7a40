"""`to_nsq`: publishes the pieces of stdin to every nsqd given."""

from .program import main

__all__ = ["main"]
