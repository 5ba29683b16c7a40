"""OpenTelemetry traces of publishing and of handling messages: `pip install nsquark[otel]`.

    producer = otel.Producer("127.0.0.1:4150", carrier=otel.JsonField())
    await consumer.run(otel.traced(handler, carrier=otel.JsonField()))

A message of NSQ has a body and no headers, so the context of a trace travels in the body or not at all. A
`Carrier` puts it there and takes it out again. Without one (the default) no byte of a body is changed:
publishing and handling have their spans, with topic, channel and message id, and no link between them.

With a carrier, the span of a handler has a link to the span that published the message. It is no child of
that span: a message may be handled much later, more than once, and on several channels.

Names and attributes are those of OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from nsquark import client
from nsquark.client import Discard, Message, Requeue
from nsquark.client.producer import Body
from nsquark.version import VERSION

__all__ = ["Carrier", "JsonField", "Producer", "handling", "publishing", "traced"]


class Carrier(Protocol):
    """How the context of a trace travels in a body."""

    def inject(self, body: bytes, context: Mapping[str, str]) -> bytes:
        """The body with the context in it, or the body as it is if it has no place for one."""

    def extract(self, body: bytes) -> Mapping[str, str]:
        """The context in a body; empty if there is none."""


class JsonField:
    """The context as a member of a body that is a JSON object. Other bodies stay as they are.

    `{"order": 42}` becomes `{"order": 42, "otel": {"traceparent": "00-…"}}`. Every consumer of the topic sees
    the member, and should pass over it.
    """

    def __init__(self, name: str = "otel") -> None:
        self.name = name

    def inject(self, body: bytes, context: Mapping[str, str]) -> bytes:
        document = _json_object(body)
        if document is None or not context or self.name in document:
            return body
        # Only the end is touched: numbers, order and spaces of the rest stay as the caller wrote them.
        rest = body.rstrip()
        member = f"{json.dumps(self.name)}:{json.dumps(dict(context), separators=(',', ':'))}}}"
        return rest[:-1] + (b"," if document else b"") + member.encode()

    def extract(self, body: bytes) -> Mapping[str, str]:
        document = _json_object(body)
        found = document.get(self.name) if document is not None else None
        if not isinstance(found, dict):
            return {}
        return {key: value for key, value in found.items() if isinstance(value, str)}


def _json_object(body: bytes) -> dict[str, Any] | None:
    if body.lstrip()[:1] != b"{":
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("nsquark", VERSION, provider)


# ---- publishing


@contextmanager
def publishing(
    topic: str,
    bodies: Sequence[Body],
    *,
    carrier: Carrier | None = None,
    provider: TracerProvider | None = None,
) -> Iterator[list[Body]]:
    """A span around a publish of any producer, `nsquark.sync`'s too. Publish the bodies that it gives:

    with otel.publishing("orders", [body], carrier=carrier) as bodies:
        producer.publish_many("orders", bodies)
    """
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "nsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    if len(bodies) == 1:
        attributes["messaging.message.body.size"] = len(bodies[0])
    else:
        attributes["messaging.batch.message_count"] = len(bodies)
    tracer = _tracer(provider)
    with tracer.start_as_current_span(
        f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes
    ) as span:
        if carrier is None or not span.get_span_context().is_valid:
            yield list(bodies)
            return
        context: dict[str, str] = {}
        propagate.inject(context)
        yield [carrier.inject(bytes(body), context) for body in bodies]


class Producer(client.Producer):
    """`nsquark.Producer` with a span for each publish."""

    def __init__(
        self,
        *arguments: Any,
        carrier: Carrier | None = None,
        provider: TracerProvider | None = None,
        **options: Any,
    ) -> None:
        """`carrier` puts the context into bodies. Everything else is as for `nsquark.Producer`."""
        super().__init__(*arguments, **options)
        self._publishing = functools.partial(publishing, carrier=carrier, provider=provider)

    async def publish(self, topic: str, body: Body, **options: Any) -> None:
        with self._publishing(topic, [body]) as bodies:
            await super().publish(topic, bodies[0], **options)

    async def publish_many(self, topic: str, bodies: Sequence[Body], **options: Any) -> None:
        with self._publishing(topic, bodies) as carrying:
            await super().publish_many(topic, carrying, **options)

    def publish_nowait(self, topic: str, body: Body, **options: Any) -> asyncio.Future[None]:
        """The span ends when the message is on its way, not when nsqd has stored it."""
        with self._publishing(topic, [body]) as bodies:
            return super().publish_nowait(topic, bodies[0], **options)

    def publish_many_nowait(self, topic: str, bodies: Sequence[Body], **options: Any) -> asyncio.Future[None]:
        with self._publishing(topic, bodies) as carrying:
            return super().publish_many_nowait(topic, carrying, **options)


# ---- handling


@contextmanager
def handling(
    message: Message, *, carrier: Carrier | None = None, provider: TracerProvider | None = None
) -> Iterator[None]:
    """A span around the work on a message, for code that iterates:

    with otel.handling(message, carrier=carrier), message:
        …
    """
    links = []
    if carrier is not None and (context := carrier.extract(message.body)):
        published = trace.get_current_span(propagate.extract(context)).get_span_context()
        if published.is_valid:
            links.append(Link(published))
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.consumer.group.name": message.channel,
        "messaging.message.id": message.id.decode("ascii", "replace"),
        "messaging.message.body.size": len(message.body),
        "nsq.message.attempts": message.attempts,
        "server.address": message.nsqd_address,
    }
    with _tracer(provider).start_as_current_span(
        f"process {message.topic}",
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except (Discard, Requeue) as answer:  # chosen by the handler: no error
            span.set_attribute("nsq.message.answer", type(answer).__name__.lower())
            raise
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise


Handler = Callable[[Message], Awaitable[object] | object]


def traced(
    handler: Handler, *, carrier: Carrier | None = None, provider: TracerProvider | None = None
) -> Handler:
    """A handler for `run` (of `nsquark.Consumer` or `nsquark.sync.Consumer`) with a span around each call."""
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def handle(message: Message) -> object:
            with handling(message, carrier=carrier, provider=provider):
                return await handler(message)

        return handle

    @functools.wraps(handler)
    def handle_plainly(message: Message) -> object:
        with handling(message, carrier=carrier, provider=provider):
            return handler(message)

    return handle_plainly
