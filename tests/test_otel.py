"""Traces of publishing and handling, as OpenTelemetry's own exporter has them."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import nsquark
from nsquark import Config, otel, sync
from nsquark.errors import UsageError
from tests.daemon import Nsqd, until

CARRIER = otel.JsonField()


class Traces:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traces() -> Traces:
    return Traces()


async def consume(nsqd: Nsqd, handler: otel.Handler, count: int) -> None:
    """Run the handler until so many messages were finished."""
    settings = Config(backoff=None, default_requeue_delay=0.0)
    async with nsquark.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=settings) as consumer:
        running = asyncio.create_task(consumer.run(handler))
        async with asyncio.timeout(20):
            await until(lambda: consumer.stats().finished >= count)
            await consumer.close()
            await running


async def test_a_handler_is_linked_to_the_publish(nsqd: Nsqd, traces: Traces) -> None:
    bodies = []

    async def handle(message: nsquark.Message) -> None:
        bodies.append(message.json())

    async with otel.Producer(nsqd.tcp_address, carrier=CARRIER, provider=traces.provider) as producer:
        await producer.publish("t", b'{"order": 42}')
    await consume(nsqd, otel.traced(handle, carrier=CARRIER, provider=traces.provider), 1)
    (published,), (handled,) = traces.named("publish t"), traces.named("process t")
    assert published.kind is SpanKind.PRODUCER
    assert handled.kind is SpanKind.CONSUMER
    (link,) = handled.links
    assert published.context is not None
    assert (link.context.trace_id, link.context.span_id) == (
        published.context.trace_id,
        published.context.span_id,
    )
    assert handled.parent is None
    assert handled.attributes is not None
    assert handled.attributes["messaging.system"] == "nsq"
    assert handled.attributes["messaging.consumer.group.name"] == "ch"
    assert handled.attributes["nsq.message.attempts"] == 1
    assert len(str(handled.attributes["messaging.message.id"])) == 16
    assert bodies[0]["order"] == 42


async def test_without_a_carrier_no_byte_is_changed(nsqd: Nsqd, traces: Traces) -> None:
    bodies = []
    async with otel.Producer(nsqd.tcp_address, provider=traces.provider) as producer:
        await producer.publish_many("t", [b'{"a":1}', b"\xff"])
        await producer.publish_nowait("t", b"x")
        await producer.publish_many_nowait("t", [b"y", b"z"])
    handler = otel.traced(lambda message: bodies.append(message.body), provider=traces.provider)
    await consume(nsqd, handler, 5)
    assert bodies == [b'{"a":1}', b"\xff", b"x", b"y", b"z"]
    assert [span.links for span in traces.named("process t")] == [()] * 5
    counts = [
        (span.attributes or {}).get("messaging.batch.message_count") for span in traces.named("publish t")
    ]
    assert counts == [2, None, 2]


async def test_failures_are_errors_and_chosen_answers_are_none(nsqd: Nsqd, traces: Traces) -> None:
    async def handle(message: nsquark.Message) -> None:
        if message.attempts == 1:
            raise ZeroDivisionError("oh")
        if message.attempts == 2:
            raise nsquark.Requeue(0.0)

    async with otel.Producer(nsqd.tcp_address, provider=traces.provider) as producer:
        await producer.publish("t", b"x")
        with pytest.raises(UsageError):
            await producer.publish("t", b"")
    await consume(nsqd, otel.traced(handle, provider=traces.provider), 1)
    failed, requeued, finished = traces.named("process t")
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]
    assert requeued.status.status_code is finished.status.status_code is StatusCode.UNSET
    assert (requeued.attributes or {})["nsq.message.answer"] == "requeue"
    assert [span.status.status_code for span in traces.named("publish t")] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_code_without_an_event_loop(nsqd: Nsqd, traces: Traces) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        with otel.publishing("t", [b"{}"], carrier=CARRIER, provider=traces.provider) as bodies:
            producer.publish("t", bytes(bodies[0]))
    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
        closing = threading.Thread(target=consumer.close)
        handler = otel.traced(lambda message: closing.start(), carrier=CARRIER, provider=traces.provider)
        consumer.run(handler)
        closing.join(20)
    (handled,) = traces.named("process t")
    assert len(handled.links) == 1


@pytest.mark.parametrize("body", [b"{}", b'{"a":1}', b' {"a": 1.10, "b": [1, 2]}\n', b'{"otel-": 1}'])
def test_the_rest_of_a_json_body_stays_as_it_was(body: bytes) -> None:
    context = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    carrying = CARRIER.inject(body, context)
    assert json.loads(carrying) == {**json.loads(body), "otel": context}
    assert carrying.startswith(body.rstrip()[:-1])
    assert CARRIER.extract(carrying) == context


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[1]", b"{", b'{"otel": 1}', b'"{}"', b"\xff{}", b"{" * 100_000]
)
def test_other_bodies_stay_as_they_are(body: bytes) -> None:
    assert CARRIER.inject(body, {"traceparent": "x"}) == body
    assert CARRIER.extract(body) == {}


async def test_without_an_sdk_bodies_stay_as_they_are(nsqd: Nsqd) -> None:
    with otel.publishing("t", [b"{}"], carrier=CARRIER) as bodies:
        assert bodies == [b"{}"]
