"""nsqadmin's options: every flag of NSQ 1.3.0 and our own. Durations are float seconds."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import ipaddress
import posixpath
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nsquark.cli.flags import (
    BOOL,
    DURATION,
    LOG_FORMAT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    FlagSet,
    StartError,
    flag,
)
from nsquark.gotext import format_os_error

from .upstream import endpoint

# What `/config` does not tell.
SECRET_KEYS = frozenset({"http_client_secret"})

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
    log_level: str = flag(LOG_LEVEL, "info", "set log verbosity: debug, info, warn, error, or fatal")
    log_format: str = flag(LOG_FORMAT, "text", "form of log lines: text, or json for one object each")
    log_prefix: str = flag(STRING, "[nsqadmin] ", "log message prefix")
    http_address: str = flag(STRING, "0.0.0.0:4171", "<addr>:<port> to listen on for HTTP clients")
    base_path: str = flag(STRING, "/", "URL base path")
    dev_static_dir: str = flag(STRING, "", "directory to serve static files from, for development")

    lookupd_http_address: list[str] = flag(
        STRINGS,
        list,
        "lookupd HTTP address, with https:// in front for TLS (may be given multiple times)",
        key="nsqlookupd_http_addresses",
    )
    nsqd_http_address: list[str] = flag(
        STRINGS,
        list,
        "nsqd HTTP address, with https:// in front for TLS (may be given multiple times)",
        key="nsqd_http_addresses",
    )
    http_client_connect_timeout: float = flag(DURATION, 2.0, "timeout for HTTP connect")
    http_client_request_timeout: float = flag(DURATION, 5.0, "timeout for HTTP request")
    http_client_tls_insecure_skip_verify: bool = flag(
        BOOL, False, "configure the HTTP client to skip verification of TLS certificates"
    )
    http_client_tls_root_ca_file: str = flag(STRING, "", "path to CA file for the HTTP client")
    http_client_tls_cert: str = flag(STRING, "", "path to certificate file for the HTTP client")
    http_client_tls_key: str = flag(STRING, "", "path to key file for the HTTP client")
    http_client_secret: str = flag(
        STRING, "", "secret for nsqds with --http-auth (better in a file: processes can be listed)"
    )
    http_client_secret_file: str = flag(
        STRING, "", "path to a file that holds the secret for nsqds with --http-auth"
    )

    allow_config_from_cidr: str = flag(
        STRING, "127.0.0.1/8", "a CIDR from which to allow HTTP requests to the /config endpoint"
    )
    acl_http_header: str = flag(
        STRING, "X-Forwarded-User", "HTTP header to check for authenticated admin users"
    )
    admin_user: list[str] = flag(
        STRINGS,
        list,
        "admin user (may be given multiple times; if specified, only these users will be able to perform "
        "privileged actions; acl-http-header is used to determine the authenticated user)",
        key="admin_users",
    )
    notification_http_endpoint: str = flag(
        STRING,
        "",
        "HTTP endpoint (fully qualified) to which POST notifications of admin actions will be sent",
    )

    graphite_url: str = flag(STRING, "", "graphite HTTP address")
    proxy_graphite: bool = flag(BOOL, False, "proxy HTTP requests to graphite")
    statsd_prefix: str = flag(
        STRING,
        "nsq.%s",
        "prefix used for keys sent to statsd (%s for host replacement, must match nsqd)",
    )
    statsd_counter_format: str = flag(
        STRING,
        "stats.counters.%s.count",
        "The counter stats key formatting applied by the implementation of statsd. If no formatting is "
        "desired, set this to an empty string.",
    )
    statsd_gauge_format: str = flag(
        STRING,
        "stats.gauges.%s",
        "The gauge stats key formatting applied by the implementation of statsd. If no formatting is "
        "desired, set this to an empty string.",
    )
    statsd_interval: float = flag(
        DURATION, 60.0, "time interval nsqd is configured to push to statsd (must match nsqd)"
    )
    prometheus_url: str = flag(STRING, "", "Prometheus to link to from the pages")
    grafana_url: str = flag(STRING, "", "Grafana to link to from the pages")

    # What to log once there is a log.
    warnings: list[str] = field(default_factory=list)

    def config_value(self, key: str) -> object:
        """The value as `/config/<key>` answers it: text for strings, otherwise ready for JSON.

        Raises KeyError for what is no key of the config file, and for secrets.
        """
        if key in SECRET_KEYS:
            raise KeyError(key)
        found = FLAGS.keys[key]
        return found.kind.config_value(getattr(self, found.field))


FLAGS = FlagSet("nsqadmin", Options)


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line, without the program's name. Raises StartError (see `flags.report`)."""
    line = FLAGS.parse(argv)
    line.check_rest()
    options = FLAGS.build(line)
    options.warnings = line.warnings
    return options


def validate(options: Options) -> None:
    """Refuse, as StartError, what nsqadmin cannot run with; and bring the base path into its form."""
    if not options.nsqd_http_address and not options.lookupd_http_address:
        raise _refused("--nsqd-http-address or --lookupd-http-address required")
    if options.nsqd_http_address and options.lookupd_http_address:
        raise _refused("use --nsqd-http-address or --lookupd-http-address not both")
    if options.http_client_tls_cert and not options.http_client_tls_key:
        raise _refused("--http-client-tls-key must be specified with --http-client-tls-cert")
    if options.http_client_tls_key and not options.http_client_tls_cert:
        raise _refused("--http-client-tls-cert must be specified with --http-client-tls-key")
    if options.http_client_secret and options.http_client_secret_file:
        raise _refused("use --http-client-secret or --http-client-secret-file not both")
    for name, value in (
        ("--http-client-connect-timeout", options.http_client_connect_timeout),
        ("--http-client-request-timeout", options.http_client_request_timeout),
        ("--statsd-interval", options.statsd_interval),
    ):
        if value <= 0:
            raise _refused(f"{name} must be > 0, not {value} s")
    for name, addresses in (
        ("--lookupd-http-address", options.lookupd_http_address),
        ("--nsqd-http-address", options.nsqd_http_address),
    ):
        for address in addresses:
            _resolve(name, address)
    for name, url in (
        ("--notification-http-endpoint", options.notification_http_endpoint),
        ("--graphite-url", options.graphite_url if options.proxy_graphite else ""),
        ("--prometheus-url", options.prometheus_url),
        ("--grafana-url", options.grafana_url),
    ):
        if url:
            _check_url(name, url)
    allowed_network(options)
    options.base_path = normal_base_path(options.base_path)


def _refused(reason: str) -> StartError:
    return StartError(f"failed to instantiate nsqadmin - {reason}")


def _resolve(name: str, address: str) -> None:
    try:
        _, host, port = endpoint(address)
        socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        reason = f"lookup {host}: {error.strerror}"
    except (OSError, ValueError) as error:
        reason = str(error)
    else:
        return
    raise _refused(f"failed to resolve {name} ({address}) - {reason}")


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise _refused(f"failed to parse {name} ({url}) - {error}") from None
    if not good:
        raise _refused(f"failed to parse {name} ({url}) - it is no http or https URL")


def normal_base_path(path: str) -> str:
    """With a slash in front and none at the end: `admin/nsq/` is `/admin/nsq`."""
    return posixpath.normpath("/" + path.strip("/"))


def allowed_network(options: Options) -> Network | None:
    """From where `/config` may be used; None for everywhere. Raises StartError."""
    cidr = options.allow_config_from_cidr
    if not cidr:
        return None
    try:
        if "/" not in cidr:
            raise ValueError("invalid CIDR address")
        return ipaddress.ip_network(cidr, strict=False)
    except ValueError as error:
        raise _refused(f"failed to parse --allow-config-from-cidr ({cidr}) - {error}") from None


def tls_context(options: Options) -> ssl.SSLContext | None:
    """For https upstreams; None if nothing about TLS was said. Raises StartError."""
    ca, cert, key = (
        options.http_client_tls_root_ca_file,
        options.http_client_tls_cert,
        options.http_client_tls_key,
    )
    if not ca and not cert and not options.http_client_tls_insecure_skip_verify:
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError:
        raise _refused(f"failed to AppendCertsFromPEM {ca}") from None
    except OSError as error:
        raise _refused(f"failed to read TLS root CA file {ca} - {format_os_error(error)}") from None
    if cert:
        try:
            context.load_cert_chain(cert, key)
        except OSError as error:  # an SSLError too
            reason = format_os_error(error)
            raise _refused(f"failed to LoadX509KeyPair {cert}, {key} - {reason}") from None
    if options.http_client_tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def secret(options: Options) -> str:
    """The secret for nsqds with `--http-auth`, perhaps from its file. Raises StartError."""
    path = options.http_client_secret_file
    if not path:
        text = options.http_client_secret
    else:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(65536).strip()
        except OSError as error:
            raise _refused(
                f"failed to read --http-client-secret-file {path} - {format_os_error(error)}"
            ) from None
        except UnicodeDecodeError:
            raise _refused(f"--http-client-secret-file {path} is no text") from None
    if not text.isascii() or not text.isprintable():
        raise _refused("the secret for nsqds may hold printable ASCII only")
    return text
