"""Options: as fields, and as the command line brings them."""

from __future__ import annotations

import pydoc
import ssl
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nsquark.client import Config, Exponential, FullJitter, Reconnect
from nsquark.errors import UsageError

TLS = Path(__file__).parent / "tls"


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [
        ("max_in_flight,200", "max_in_flight", 200),
        ("max-in-flight,200", "max_in_flight", 200),
        ("heartbeat_interval,1m", "heartbeat_interval", 60.0),
        ("msg-timeout,1h2m3.5s", "msg_timeout", 3723.5),
        ("output_buffer_timeout,25ms", "output_buffer_timeout", 0.025),
        ("lookupd_poll_jitter,0.5", "lookupd_poll_jitter", 0.5),
        ("user_agent,me/1.0, and more", "user_agent", "me/1.0, and more"),
        ("auth_secret,a,b", "auth_secret", "a,b"),
        ("snappy", "compression", "snappy"),
        ("deflate,t", "compression", "deflate"),
        ("snappy,false", "compression", None),
        ("tls_v1", "tls", True),
        ("tls_v1,0", "tls", False),
        ("max_backoff_duration,0", "backoff", Exponential(cap=0.0)),
        ("backoff_strategy,full_jitter", "backoff", FullJitter()),
        ("backoff_multiplier,10ms", "backoff", Exponential(multiplier=0.01)),
        ("skip_lookupd_authorization,false", "lookupd_authorization", False),
    ],
)
def test_an_option_is_read(option: str, field: str, value: object) -> None:
    assert getattr(Config.from_options([option]), field) == value


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["no_such,1"], "no_such: there is no such option"),
        (["max_in_flight"], "max_in_flight: it needs a value"),
        (["max_in_flight,many"], "max_in_flight: .*invalid syntax"),
        (["max_in_flight,-1"], "max_in_flight: not within 0"),
        (["max_attempts,65536"], "max_attempts: not within"),
        (["read_timeout,60"], "read_timeout: .*missing unit"),
        (["read_timeout,50ms"], "read_timeout: not within 0.1"),
        (["sample_rate,100"], "sample_rate: not within"),
        (["snappy,yes"], "snappy: .*invalid syntax"),
        (["snappy", "deflate"], "exclude each other"),
        (["backoff_strategy,linear"], "neither exponential nor full_jitter"),
        (["backoff_strategy,full_jitter", "backoff_multiplier,0"], "backoff_multiplier 0"),
        (["tls_v1", "tls_min_version,ssl3.0"], "tls_min_version: 'ssl3.0'"),
        (["tls_v1", "tls_root_ca_file,/no/such"], "/no/such"),
        (["tls_v1", "tls_cert,x"], "go together"),
        (["heartbeat_interval,2m"], "longer than read_timeout"),
        (["low_rdy_timeout,5s"], "shorter than low_rdy_idle_timeout"),
    ],
)
def test_a_bad_option_is_named(options: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Config.from_options(options)


def test_options_come_on_top_of_a_config() -> None:
    base = Config(max_in_flight=7, tls=True)
    config = Config.from_options(["max_attempts,0"], base)
    assert (config.max_in_flight, config.max_attempts, config.tls) == (7, 0, True)


def test_tls_options_make_a_context() -> None:
    options = [f"tls_root_ca_file,{TLS / 'cert.pem'}", "tls_v1", "tls_min_version,tls1.3"]
    context = Config.from_options(options).tls
    assert isinstance(context, ssl.SSLContext)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509"] >= 1


def test_verification_is_off_only_when_that_is_said() -> None:
    context = Config.from_options(["tls_v1", "tls_insecure_skip_verify"]).tls
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_NONE


def test_the_default_context_verifies_and_is_not_old() -> None:
    context = Config(tls=True).ssl_context()
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert Config().ssl_context() is None


@pytest.mark.parametrize(
    "given",
    [
        {"max_in_flight": -1},
        {"read_timeout": 0.01},
        {"heartbeat_interval": 61.0},
        {"lookupd_poll_jitter": 1.5},
        {"compression": "zip"},
        {"deflate_level": 0},
        {"heartbeat_interval": 0.5},
        {"heartbeat_interval": 0},
        {"heartbeat_interval": -2},
        {"heartbeat_interval": None},
        {"heartbeat_interval": "30s"},
        {"heartbeat_interval": float("nan")},
        {"msg_timeout": 0.5},
        {"msg_timeout": -1},
        {"msg_timeout": float("inf")},
        {"msg_timeout": "1m"},
        {"output_buffer_size": 63},
        {"output_buffer_timeout": -2},
        {"max_in_flight": True},
    ],
)
def test_fields_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        Config(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"heartbeat_interval": -1},
        {"heartbeat_interval": 1},
        {"msg_timeout": None},
        {"msg_timeout": 0},
        {"msg_timeout": 1.0},
        {"output_buffer_size": -1},
        {"output_buffer_timeout": -1},
        {"max_in_flight": None},
    ],
)
def test_what_nsqd_takes_is_taken(given: dict[str, Any]) -> None:
    Config(**given).identify()


def test_help_shows_every_field() -> None:
    shown = pydoc.render_doc(Config, renderer=pydoc.plaintext)
    for field in fields(Config):
        assert f"- `{field.name}`: " in shown, field.name


def test_reconnecting_takes_longer_each_time_up_to_a_cap() -> None:
    delays = list(islice(Reconnect(first=1.0, cap=5.0, jitter=0.0).delays(), 5))
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]
    jittered = list(islice(Reconnect(first=1.0, cap=1.0, jitter=0.5).delays(), 50))
    assert all(0.5 <= delay <= 1.5 for delay in jittered)
    assert len(set(jittered)) > 10
    with pytest.raises(UsageError):
        Reconnect(first=5.0, cap=1.0)
