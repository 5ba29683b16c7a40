"""The checks of nsqd's options that need nothing but them, in NSQ's order."""

from __future__ import annotations

from collections.abc import Callable

from nsquark.cli.flags import StartError
from nsquark.gotext import format_value, quote
from nsquark.net.addresses import split_off_port

from .flag_kinds import TlsRequired
from .options import Options

POSITIVE = (
    "max_msg_size", "max_body_size", "max_bytes_per_file", "sync_timeout", "msg_timeout", "max_msg_timeout",
    "staged_timeout", "staged_app_timeout", "archive_fetched_bytes",
)  # fmt: skip
NOT_NEGATIVE = (
    "mem_queue_size", "sync_every", "max_req_timeout", "max_rdy_count", "max_heartbeat_interval",
    "drain_timeout", "max_output_buffer_size", "max_output_buffer_timeout", "min_output_buffer_timeout",
    "output_buffer_timeout", "max_channel_consumers", "retention_bytes", "retention_time", "staged_max_bytes",
    "archive_retention_bytes", "archive_retention_time",
    "channel_hold_timeout",
)  # fmt: skip


def validate(
    options: Options,
    build_tls: Callable[[Options], object] | None = None,
    build_client_tls: Callable[[Options], object] | None = None,
) -> None:
    """Refuse, as StartError, what nsqd cannot run with; the first reason in NSQ's order is told.

    The two callbacks load certificates where that order has them, and raise ValueError for what they find
    wrong: `build_tls` if there is a certificate or key, `build_client_tls` if there is a CA file.
    """
    _require(1 <= options.max_deflate_level <= 9, "--max-deflate-level must be [1,9]")
    _require(0 <= options.node_id < 1024, "--node-id must be [0,1024)")
    # To ask for certificates is to ask for TLS.
    if options.tls_client_auth_policy and not options.tls_required:
        options.tls_required = TlsRequired.EVERYBODY
    tls = bool(options.tls_cert or options.tls_key)
    if tls and build_tls:
        _build("TLS config", build_tls, options)
    _require(
        tls or not options.tls_required, "cannot require TLS client connections without TLS key and cert"
    )
    if options.tls_root_ca_file and build_client_tls:
        _build("client TLS config", build_client_tls, options)
    _require(
        options.auth_http_request_method in ("get", "post"), "--auth-http-request-method must be post or get"
    )
    for percentile in options.e2e_processing_latency_percentile:
        _require(
            0 < percentile <= 1, f"invalid E2E processing latency percentile: {format_value(percentile)}"
        )
    _validate_further(options)


def _validate_further(options: Options) -> None:
    """What NSQ 1.3.0 starts with, only to crash, hang or refuse everything later; and our own flags."""
    for name in POSITIVE:
        _require(getattr(options, name) > 0, f"--{name.replace('_', '-')} must be > 0")
    for name in NOT_NEGATIVE:
        _require(getattr(options, name) >= 0, f"--{name.replace('_', '-')} must be >= 0")
    for name in ("broadcast_tcp_port", "broadcast_http_port"):
        _require(0 <= getattr(options, name) < 65536, f"--{name.replace('_', '-')} must be [0,65536)")
    if options.statsd_address:
        _require(options.statsd_interval > 1, "--statsd-interval must be > 1s")
        _require(
            _has_port(options.statsd_address),
            f"--statsd-address must be <addr>:<port>, not {quote(options.statsd_address)}",
        )
    _require(
        options.e2e_processing_latency_window_time > 0 or not options.e2e_processing_latency_percentile,
        "--e2e-processing-latency-window-time must be > 0",
    )
    _validate_group(options)
    for name in ("archive_retention_bytes", "archive_retention_time"):
        _require(
            bool(options.archive_url) or not getattr(options, name),
            f"--{name.replace('_', '-')} needs --archive-url",
        )
    if options.archive_url:
        from nsquark.nsqd.archive.object_store import ObjectStore

        _build("archive", lambda options: ObjectStore(options.archive_url), options)
    _require(0 <= options.max_attempts <= 65535, "--max-attempts must be [0,65535]")
    _require(
        bool(options.auth_http_address) or not options.http_auth, "--http-auth needs --auth-http-address"
    )


def _validate_group(options: Options) -> None:
    if not options.replica_group:
        for name in ("replica_member", "replica_etcd", "replica_bootstrap", "replica_advertise"):
            _require(not getattr(options, name), f"--{name.replace('_', '-')} needs --replica-group")
        return
    _require(bool(options.replica_member), "--replica-group needs --replica-member")
    _require(bool(options.replica_etcd), "--replica-group needs --replica-etcd")
    _require(not options.replica_of, "--replica-of and --replica-group exclude each other")
    _require(bool(options.http_address), "--replica-group needs --http-address")
    _require(1 <= options.min_copies <= 3, f"--min-copies must be [1,3], not {options.min_copies}")
    _require(options.replica_timeout > 0, "--replica-timeout must be > 0")
    _require(options.replica_lease >= 2, "--replica-lease must be >= 2s, which is etcd's least")
    _require(
        not options.replica_advertise or _has_port(options.replica_advertise),
        f"--replica-advertise must be <addr>:<port>, not {quote(options.replica_advertise)}",
    )
    options.replica_etcd = [part for each in options.replica_etcd for part in each.split(",") if part]
    if options.replica_ack == "synced":
        options.sync_every = 1


def _build(what: str, build: Callable[[Options], object], options: Options) -> None:
    try:
        build(options)
    except ValueError as error:
        raise StartError(f"failed to instantiate nsqd - failed to build {what} - {error}") from None


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StartError(f"failed to instantiate nsqd - {otherwise}")


def _has_port(address: str) -> bool:
    try:
        _, port = split_off_port(address)
    except ValueError:
        return False
    return port.isascii() and port.isdigit() and 0 < int(port) < 65536
