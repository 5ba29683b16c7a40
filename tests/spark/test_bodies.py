"""The recipes of docs/spark-bodies.md, run as they stand there."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession

from tests.spark.broker import Broker

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "spark-bodies.md"
ORDERS = [{"number": number, "city": f"city {number % 3}", "sum": number / 2} for number in range(1, 50)]
BROKEN = b"\xff not of any kind"


def recipes(*headings: str) -> str:
    """The Python code under these headings of the page."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    found = [each for heading in headings for each in sections if each.startswith(heading + "\n")]
    assert len(found) == len(headings)
    return "\n".join(re.findall(r"^```python\n(.*?)^```", "".join(found), re.M | re.S))


@pytest.fixture
def run(spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Publishes bodies, runs recipes over them, and gives the names that the recipes define."""
    monkeypatch.chdir(tmp_path)

    def run(bodies: list[bytes], *headings: str) -> dict[str, Any]:
        broker.publish("t", [*bodies, BROKEN])
        options = {"nsqd.http.addresses": broker.http_address, "subscribe": "t"}
        events = spark.read.format("nsq").options(**options).load()
        # A program's own functions are sent to executors as they are, and not by the name of their module.
        names: dict[str, Any] = {"events": events, "__name__": "__main__"}
        exec(compile(recipes(*headings), str(PAGE), "exec"), names)
        return names

    return run


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = frame.select("number", "city", "sum").collect()
    return sorted((row.asDict() for row in found), key=lambda row: row["number"])


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row["value"]) for row in frame.collect()]


def test_json_with_a_schema(run: Any) -> None:
    wrong = b'{"number": "a word"}'
    names = run([*(json.dumps(order).encode() for order in ORDERS), wrong], "JSON with a schema")
    assert rows(names["orders"]) == ORDERS
    assert sorted(values(names["broken"])) == sorted([wrong, BROKEN])
    assert [json.loads(row["value"]) for row in names["messages"].collect()] == ORDERS


def test_json_of_any_shape(run: Any) -> None:
    bodies = [b'{"city": "here", "items": [{"price": 1.5}]}', b'{"city": 7}', b"[1]"]
    names = run(bodies, "JSON with a schema", "JSON of any shape")
    found = [(row["city"], row["price"]) for row in names["cities"].collect()]
    assert found == [("here", 1.5), ("7", None), (None, None), (None, None)]


def test_avro(run: Any) -> None:
    schema = {"type": "record", "name": "Order", "fields": [
        {"name": "number", "type": "long"},
        {"name": "city", "type": ["null", "string"]},
        {"name": "sum", "type": "double"},
    ]}  # fmt: skip
    bodies = []
    for order in ORDERS:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, order)
        bodies.append(body.getvalue())
    names = run(bodies, "JSON with a schema", "Avro")
    assert rows(names["avro_orders"]) == ORDERS
    struct = names["f"].struct("number", "city", "sum")
    again = names["avro_orders"].select(names["to_avro"](struct).alias("value"))
    assert sorted(values(again)) == sorted(bodies)


def test_protobuf(run: Any, tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kinds = {"number": "TYPE_INT64", "city": "TYPE_STRING", "sum": "TYPE_DOUBLE"}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        order.field.add(name=name, number=number, type=kind, label="LABEL_OPTIONAL")
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    (tmp_path / "shop.desc").write_bytes(descriptors)
    encoded = [_protobuf(each) for each in ORDERS]
    names = run(encoded, "JSON with a schema", "Avro", "Protobuf")
    assert rows(names["proto_orders"]) == ORDERS
    struct = names["f"].struct("number", "city", "sum")
    again = names["proto_orders"].select(names["to_protobuf"](struct).alias("value"))
    assert sorted(values(again)) == sorted(encoded)


def _protobuf(order: dict[str, Any]) -> bytes:
    """The bytes of the message, laid out by hand as its specification says."""
    import struct

    city = order["city"].encode()
    return b"\x08%c\x12%c%b\x19%b" % (order["number"], len(city), city, struct.pack("<d", order["sum"]))
