"""From the address of an nsqd to the URL of its HTTP API."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from nsquark.spark.errors import BadResponse, RequestRefused, Unreachable
from nsquark.spark.http import Access, fetch_json
from nsquark.spark.nsqd_urls import find_http_url, find_https_url, https_url_in
from tests.security.certificates import Authority
from tests.spark.broker import Broker


def test_an_nsqd_tells_its_http_port(broker: Broker) -> None:
    assert find_http_url(broker.tcp_address, Access()) == f"http://{broker.http_address}"
    with pytest.raises(BadResponse, match=f"nsqd {broker.http_address}: no answer to IDENTIFY"):
        find_http_url(broker.http_address, Access())
    broker.kill()
    with pytest.raises(Unreachable, match=f"nsqd {broker.tcp_address} cannot be reached"):
        find_http_url(broker.tcp_address, Access())


def test_an_nsqd_that_requires_tls_tells_its_https_port(broker: Broker, tmp_path: Path) -> None:
    assert find_https_url(f"http://{broker.http_address}", Access()) == f"http://{broker.http_address}"
    certificate, key = Authority(tmp_path).sign("nsqd")
    flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required", "--https-address=127.0.0.1:0")
    with Broker(tmp_path / "secure", *flags).start() as secure:
        assert find_https_url(f"http://{secure.http_address}", Access()).startswith("https://127.0.0.1:")
        assert find_http_url(secure.tcp_address, Access()) == f"http://{secure.http_address}"


def test_a_port_that_speaks_tls_is_told(broker: Broker, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("nsqd")
    flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required", "--https-address=127.0.0.1:0")
    with Broker(tmp_path / "secure", *flags).start() as secure:
        https = find_https_url(f"http://{secure.http_address}", Access())
        with pytest.raises(Unreachable, match=f"this port speaks TLS: write {https}$"):
            find_https_url(https.replace("https:", "http:"), Access())
    with pytest.raises(Unreachable, match="this port does not speak TLS: write http://"):
        fetch_json(f"https://{broker.http_address}", Access(), "/info")


def test_an_nsqd_that_requires_auth_tells_its_http_port(tmp_path: Path) -> None:
    with Broker(tmp_path, "--auth-http-address=127.0.0.1:1").start() as secure:
        assert find_http_url(secure.tcp_address, Access()) == f"http://{secure.http_address}"


def test_an_nsqd_that_closes_the_connection_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def close() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)

        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(Unreachable, match=f"nsqd {address} cannot be reached"):
            find_http_url(address, Access(timeout=20.0))
        thread.join()


def test_only_a_refusal_of_plain_http_tells_a_url() -> None:
    def refusal(status: int, **details: object) -> RequestRefused:
        return RequestRefused("http://[::1]:4151/info", status, "TLS_REQUIRED", details)

    assert https_url_in(refusal(403, https_port=4152), "http://[::1]:4151") == "https://[::1]:4152"
    assert https_url_in(refusal(404, https_port=4152), "http://[::1]:4151") == ""
    assert https_url_in(refusal(403, https_port=-1), "http://[::1]:4151") == ""
    assert https_url_in(refusal(403), "http://[::1]:4151") == ""
