"""The client library: `Producer`, `Consumer`, and what they hand out. Import it from `nsquark`."""

from .backoff import Backoff, Exponential, FullJitter
from .config import Config, Reconnect
from .consumer import Consumer
from .events import ConsumerStats, Drained, Event
from .http_api import NsqdHttp, NsqlookupdHttp
from .message import Discard, Message, MessageId, Requeue
from .producer import Producer

__all__ = [
    "Backoff",
    "Config",
    "Consumer",
    "ConsumerStats",
    "Discard",
    "Drained",
    "Event",
    "Exponential",
    "FullJitter",
    "Message",
    "MessageId",
    "NsqdHttp",
    "NsqlookupdHttp",
    "Producer",
    "Reconnect",
    "Requeue",
]
