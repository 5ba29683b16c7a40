"""`Consumer`: one channel of one topic, consumed from any number of nsqds."""

from .consumer import Consumer

__all__ = ["Consumer"]
