"""`Producer`: publishing to one nsqd or to several."""

from .pool import Mode
from .producer import Producer
from .size_limits import Body

__all__ = ["Body", "Mode", "Producer"]
