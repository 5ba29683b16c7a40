"""nsqd's options: every flag of NSQ 1.3.0 and our own.

Durations are float seconds. `fill_in`, and `validate` of `options_check`, turn given values into effective
ones.
"""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from nsquark.cli.flags import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    LOG_FORMAT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    FlagSet,
    flag,
)
from nsquark.net.addresses import join_address

from .flag_kinds import (
    DEFAULT_TLS_VERSION,
    ImportKind,
    TlsRequiredKind,
    TlsVersionKind,
    WordKind,
    WorkerIdKind,
)
from .flag_kinds import TlsRequired as TlsRequired


def _host_name() -> str:
    return os.uname().nodename


def _default_node_id() -> int:
    from hashlib import md5
    from zlib import crc32

    return crc32(md5(_host_name().encode(), usedforsecurity=False).digest()) % 1024


# Without repr and eq: they are not used, and making them is most of the import.
@dataclass(slots=True, repr=False, eq=False)
class Options:
    """A field per flag, named as the flag with `_` for `-`."""

    version: bool = flag(BOOL, False, "print version string", key=None)
    config: str = flag(STRING, "", "path to config file", key=None)
    verbose: bool = flag(
        BOOL,
        False,
        "deprecated: has no effect",
        key=None,
        deprecated="it has no effect, use --log-level=debug",
    )
    worker_id: bool = flag(
        WorkerIdKind(), False, "deprecated: use --node-id", key=None, deprecated="use --node-id"
    )
    log_level: str = flag(LOG_LEVEL, "info", "set log verbosity: debug, info, warn, error, or fatal")
    log_format: str = flag(LOG_FORMAT, "text", "form of log lines: text, or json for one object each")
    log_prefix: str = flag(STRING, "[nsqd] ", "log message prefix")
    node_id: int = flag(
        INT,
        _default_node_id,
        "unique part for message IDs, (int) in range [0,1024)",
        key="id",
    )

    # Addresses.
    tcp_address: str = flag(
        STRING,
        "0.0.0.0:4150",
        "address to listen on for TCP clients (<addr>:<port> or unix socket path)",
    )
    http_address: str = flag(
        STRING,
        "0.0.0.0:4151",
        "address to listen on for HTTP clients (<addr>:<port> or unix socket path; empty: none)",
    )
    https_address: str = flag(
        STRING,
        "0.0.0.0:4152",
        "address to listen on for HTTPS clients (<addr>:<port>), used only with a certificate",
    )
    broadcast_address: str = flag(
        STRING, _host_name, "address that will be registered with lookupd (defaults to the OS hostname)"
    )
    broadcast_tcp_port: int = flag(
        INT,
        0,
        "TCP port that will be registered with lookupd (defaults to the one listened on)",
    )
    broadcast_http_port: int = flag(
        INT,
        0,
        "HTTP port that will be registered with lookupd (defaults to the one listened on)",
    )
    lookupd_tcp_address: list[str] = flag(
        STRINGS,
        list,
        "lookupd TCP address (may be given multiple times)",
        key="nsqlookupd_tcp_addresses",
        go_name="NSQLookupdTCPAddresses",
    )
    auth_http_address: list[str] = flag(
        STRINGS,
        list,
        "<addr>:<port> or a full URL to query an auth server (may be given multiple times)",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = flag(
        STRING, "get", "HTTP method to use for auth server requests: get or post"
    )
    http_auth: bool = flag(
        BOOL,
        False,
        "demand authorization for the HTTP API, too: the secret of an AUTH as a bearer token",
    )
    http_client_connect_timeout: float = flag(DURATION, 2.0, "timeout for HTTP connect")
    http_client_request_timeout: float = flag(DURATION, 5.0, "timeout for HTTP request")

    # The log of each topic.
    data_path: str = flag(STRING, "", "path to store messages (defaults to the working directory)")
    import_: str = flag(
        ImportKind(),
        "on",
        "messages that Go's nsqd has left in the data path: take them over (on), refuse to start (off), or"
        " only say what would be taken over (check)",
        key="import",
    )
    replica_of: str = flag(
        STRING,
        "",
        "URL of the nsqd whose data this one copies: it serves no clients until it is promoted",
    )
    replica_secret_file: str = flag(
        STRING,
        "",
        "path to a file with the secret that followers on other machines must bring",
    )
    replica_group: str = flag(STRING, "", "name of the replica group that this nsqd is a member of")
    replica_member: str = flag(STRING, "", "name of this nsqd in its replica group")
    replica_etcd: list[str] = flag(
        STRINGS,
        list,
        "<addr>:<port> or URL of etcd, deciding which member leads the group (may be given multiple times)",
    )
    replica_etcd_user: str = flag(STRING, "", "name of the user that etcd demands")
    replica_etcd_password_file: str = flag(STRING, "", "path to a file with the password of that user")
    replica_advertise: str = flag(
        STRING, "", "<addr>:<port> at which the other members reach this nsqd's HTTP (default: as broadcast)"
    )
    replica_ack: str = flag(
        WordKind("written", "synced"),
        "written",
        "when a member acknowledges: with the bytes in its kernel (written) or on its disk (synced)",
    )
    replica_bootstrap: bool = flag(
        BOOL, False, "found the replica group with what this nsqd has, unless etcd knows the group already"
    )
    replica_timeout: float = flag(
        DURATION, 2.0, "duration that a publish waits for a member before the group goes on without it"
    )
    replica_lease: float = flag(
        DURATION, 3.0, "duration without a sign of life after which etcd takes the primary for gone"
    )
    min_copies: int = flag(INT, 1, "members that must be in sync for a publish to be taken")
    mem_queue_size: int = flag(INT, 10000, "number of messages to keep in memory (per topic/channel)")
    max_bytes_per_file: int = flag(INT, 104857600, "number of bytes per file before rolling")
    sync_every: int = flag(INT, 2500, "number of messages per fsync")
    sync_timeout: float = flag(DURATION, 2.0, "duration of time per fsync")
    retention_bytes: int = flag(INT, 0, "finished messages to keep of each topic, in bytes (0: none)")
    retention_time: float = flag(DURATION, 0.0, "duration for which finished messages are kept (0: none)")
    archive_url: str = flag(
        STRING,
        "",
        "URL of a folder or bucket that keeps segments beyond the disk: file://, s3://, gs://, abfs://, hdfs://",
    )
    archive_retention_bytes: int = flag(
        INT, 0, "finished messages that the archive keeps of each topic, in bytes (0: all)"
    )
    archive_retention_time: float = flag(
        DURATION, 0.0, "duration for which the archive keeps finished messages (0: for ever)"
    )
    archive_fetched_bytes: int = flag(
        INT, 1 << 30, "what is kept on the disk of segments that were read from the archive, in bytes"
    )
    channel_hold_timeout: float = flag(
        DURATION, 0.0, "duration for which the log is kept for a channel that is not read (0: for ever)"
    )
    staged_max_bytes: int = flag(
        INT, 10 << 30, "what may be staged at a time and not yet published, in bytes (0: no limit)"
    )
    staged_timeout: float = flag(
        DURATION, 6 * 3600.0, "duration after which a staged batch that is not touched is dropped"
    )
    staged_app_timeout: float = flag(
        DURATION, 30 * 86400.0, "duration for which the last batch of a silent application is remembered"
    )
    queue_scan_worker_pool_max: int = flag(
        INT, 4, "max concurrency for checking in-flight and deferred message timeouts"
    )
    queue_scan_selection_count: int = flag(
        INT, 20, "number of channels to check per cycle for in-flight and deferred timeouts"
    )

    # Messages and commands.
    msg_timeout: float = flag(DURATION, 60.0, "default duration to wait before auto-requeing a message")
    drain_timeout: float = flag(
        DURATION, 5.0, "duration that consumers have to answer their messages when nsqd is told to stop"
    )
    max_msg_timeout: float = flag(DURATION, 900.0, "maximum duration before a message will timeout")
    max_msg_size: int = flag(INT, 1048576, "maximum size of a single message in bytes")
    max_body_size: int = flag(INT, 5242880, "maximum size of a single command body")
    max_req_timeout: float = flag(DURATION, 3600.0, "maximum requeuing timeout for a message")
    max_attempts: int = flag(
        INT, 0, "deliveries of a message to a channel before it becomes a dead letter (0: unlimited)"
    )

    # What clients may ask for.
    max_heartbeat_interval: float = flag(
        DURATION, 60.0, "maximum client configurable duration of time between client heartbeats"
    )
    max_rdy_count: int = flag(INT, 2500, "maximum RDY count for a client")
    max_output_buffer_size: int = flag(
        INT, 65536, "maximum client configurable size (in bytes) for a client output buffer"
    )
    max_output_buffer_timeout: float = flag(
        DURATION, 30.0, "maximum client configurable duration of time between flushing to a client"
    )
    min_output_buffer_timeout: float = flag(
        DURATION, 0.025, "minimum client configurable duration of time between flushing to a client"
    )
    output_buffer_timeout: float = flag(
        DURATION, 0.25, "default duration of time between flushing data to clients"
    )
    max_channel_consumers: int = flag(
        INT, 0, "maximum channel consumer connection count per nsqd instance (0: unlimited)"
    )

    # Statistics.
    statsd_address: str = flag(STRING, "", "UDP <addr>:<port> of a statsd daemon for pushing stats")
    statsd_prefix: str = flag(
        STRING, "nsq.%s", "prefix used for keys sent to statsd (%s for host replacement)"
    )
    statsd_interval: float = flag(DURATION, 60.0, "duration between pushing to statsd")
    statsd_mem_stats: bool = flag(BOOL, True, "toggle sending memory and GC stats to statsd")
    statsd_udp_packet_size: int = flag(INT, 508, "the size in bytes of statsd UDP packets")
    statsd_exclude_ephemeral: bool = flag(
        BOOL, False, "skip ephemeral topics and channels when sending stats to statsd"
    )
    e2e_processing_latency_percentile: list[float] = flag(
        FLOATS,
        list,
        "message processing time percentiles (as float (0, 1.0]) to track (repeatable or comma separated)",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time: float = flag(
        DURATION,
        600.0,
        "calculate end to end latency quantiles for this duration of time",
    )

    # TLS and compression.
    tls_cert: str = flag(STRING, "", "path to certificate file")
    tls_key: str = flag(STRING, "", "path to key file")
    tls_client_auth_policy: str = flag(
        STRING, "", "client certificate auth policy ('require' or 'require-verify')"
    )
    tls_root_ca_file: str = flag(STRING, "", "path to certificate authority file")
    tls_required: TlsRequired = flag(
        TlsRequiredKind(), TlsRequired.NOBODY, "require TLS for client connections (true, false, tcp-https)"
    )
    tls_min_version: int = flag(
        TlsVersionKind(),
        DEFAULT_TLS_VERSION,
        "minimum TLS version acceptable ('tls1.0', 'tls1.1', 'tls1.2', or 'tls1.3')",
    )
    deflate: bool = flag(
        BOOL, True, "enable deflate feature negotiation (client compression)", go_name="DeflateEnabled"
    )
    max_deflate_level: int = flag(
        INT, 6, "max deflate compression level a client can negotiate (> values == > nsqd CPU usage)"
    )
    snappy: bool = flag(
        BOOL, True, "enable snappy feature negotiation (client compression)", go_name="SnappyEnabled"
    )

    # Experiments.
    topology_region: str = flag(STRING, "", "region of this nsqd, for topology aware consumption")
    topology_zone: str = flag(STRING, "", "zone of this nsqd, for topology aware consumption")
    enable_experiment: list[str] = flag(
        STRINGS,
        list,
        "enable an experimental feature: topology-aware-consumption (may be given multiple times)",
        go_name="Experiments",
    )

    # What to log once there is a log.
    warnings: list[str] = field(default_factory=list)

    def config_value(self, key: str) -> object:
        """The effective value as `/config/<key>` answers it: text for strings, otherwise ready for JSON.

        Raises KeyError for what is no key of the config file.
        """
        found = FLAGS.keys[key]
        return found.kind.config_value(getattr(self, found.field))

    def fill_in(self, tcp_port: int, http_port: int) -> None:
        """Complete what depends on the ports we listen on (0 for none): broadcast ports and statsd prefix."""
        self.broadcast_tcp_port = self.broadcast_tcp_port or tcp_port
        self.broadcast_http_port = self.broadcast_http_port or http_port
        if self.statsd_prefix:
            node = join_address(self.broadcast_address, self.broadcast_http_port)
            node = node.replace(".", "_").replace(":", "_")
            self.statsd_prefix = self.statsd_prefix.replace("%s", node).removesuffix(".") + "."


FLAGS = FlagSet(
    "nsqd",
    Options,
    renamed={"max-message-size": "max-msg-size"},
    checked_first=("tls_required", "tls_min_version", "log_level"),
)


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line, without the program's name. Raises StartError (see `flags.report`)."""
    line = FLAGS.parse(argv)
    worker_id = line.values.pop("worker_id", False)
    if not isinstance(worker_id, bool):
        line.values.setdefault("node_id", worker_id)
    line.check_rest()
    options = FLAGS.build(line)
    options.warnings = line.warnings
    return options
