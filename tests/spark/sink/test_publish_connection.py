"""A connection that publishes: its handshake, its answers, and the option that an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.spark.http import Access
from nsquark.spark.sink.publish_connection import (
    ConnectionFailed,
    PublishConnection,
    PublishRefused,
    idle_connections,
)
from tests.daemon import mpub
from tests.security.certificates import Authority
from tests.spark.broker import Broker

ACCESS = Access(timeout=20.0)


def test_each_command_is_answered(broker: Broker) -> None:
    connection = PublishConnection(broker.tcp_address, ACCESS)
    connection.send(mpub("t", [b"a"]) + mpub("t", [b"b", b"c"]))
    connection.wait_for_ok()
    connection.wait_for_ok()
    assert broker.log("t")["next"] == 3
    broker.kill()
    with pytest.raises(ConnectionFailed, match=f"nsqd {broker.tcp_address} has closed the connection"):
        connection.wait_for_ok()
    connection.close()
    with pytest.raises(ConnectionFailed, match=f"nsqd {broker.tcp_address} cannot be reached"):
        PublishConnection(broker.tcp_address, ACCESS)


def test_a_command_that_nsqd_refuses_is_refused_for_good(broker: Broker) -> None:
    connection = PublishConnection(broker.tcp_address, ACCESS)
    connection.send(b"MPUB not:a:topic\n\0\0\0\0")
    with pytest.raises(PublishRefused, match="E_BAD_TOPIC"):
        connection.wait_for_ok()
    connection.close()


def test_tls_is_used_if_an_option_asks_for_it(broker: Broker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    trusting = Access(timeout=20.0, ca_file=str(authority.file))
    with pytest.raises(PublishRefused, match=r"option 'tls.caFile': nsqd .* has no TLS"):
        PublishConnection(broker.tcp_address, trusting)
    flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required")
    with Broker(tmp_path / "secure", *flags).start() as secure:
        PublishConnection(secure.tcp_address, trusting).close()
        with pytest.raises(PublishRefused, match=r"option 'tls.caFile': nsqd .*certificate"):
            PublishConnection(secure.tcp_address, Access(timeout=20.0, cert_file=certificate, key_file=key))
        plain = PublishConnection(secure.tcp_address, ACCESS)
        plain.send(mpub("t", [b"a"]))
        with pytest.raises(PublishRefused, match=r"option 'tls.caFile': missing: nsqd .*TLS required"):
            plain.wait_for_ok()
        plain.close()


def test_a_secret_that_is_missing_is_named(tmp_path: Path) -> None:
    with Broker(tmp_path, "--auth-http-address=127.0.0.1:1").start() as secure:
        with pytest.raises(PublishRefused, match=r"option 'auth.secret': missing, and nsqd .* wants it"):
            PublishConnection(secure.tcp_address, ACCESS)
        with pytest.raises(PublishRefused, match=r"option 'auth.secret': nsqd .*E_AUTH"):
            PublishConnection(secure.tcp_address, Access(timeout=20.0, secret="s"))


def test_an_address_without_a_port_is_another_nsqds_turn() -> None:
    with pytest.raises(ConnectionFailed, match=r"nsqd localhost:0 cannot be reached"):
        PublishConnection("localhost:0", ACCESS)


def test_one_idle_connection_is_kept_for_each_nsqd(broker: Broker) -> None:
    first, second = (PublishConnection(broker.tcp_address, ACCESS) for _ in range(2))
    idle_connections.put(first, ACCESS)
    idle_connections.put(second, ACCESS)
    with pytest.raises(ConnectionFailed):
        first.send(b"NOP\n")
    assert idle_connections.take(broker.tcp_address, ACCESS) is second
    assert idle_connections.take(broker.tcp_address, ACCESS) is None
    second.close()
