"""`Producer`: publishing to one nsqd or to several."""

from .pool import Mode
from .producer import Body, Producer

__all__ = ["Body", "Mode", "Producer"]
