"""`nsq_tail`: prints the messages of topics, as they come or from the log."""

from .program import main

__all__ = ["main"]
