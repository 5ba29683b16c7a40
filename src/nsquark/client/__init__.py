"""The client library: `Producer`, `Consumer`, and what they hand out. Import it from `nsquark`."""

from nsquark.client.backoff import Backoff, Exponential, FullJitter
from nsquark.client.config import Config, Reconnect
from nsquark.client.consumer import Consumer
from nsquark.client.events import ConsumerStats, Drained, Event
from nsquark.client.http import NsqdHttp, NsqlookupdHttp
from nsquark.client.message import Discard, Message, MessageId, Requeue
from nsquark.client.producer import Producer

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
