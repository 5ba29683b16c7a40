"""The options of a client, under NSQ's names, checked when they are set.

Durations are float seconds. `Config.from_options` reads the `name,value` items of `--consumer-opt` and
`--producer-opt`, with Go's spelling of durations and booleans.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from random import uniform
from socket import gethostname
from typing import Any, Literal

from nsquark.errors import UsageError
from nsquark.gotext import parse_bool, parse_duration, parse_float, parse_int, seconds
from nsquark.version import VERSION

from .backoff import Backoff, Exponential, FullJitter

LIBRARY = f"nsquark/{VERSION}"
TLS_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """The delays before dialling a lost nsqd again: they double from `first` to `cap`, with jitter."""

    first: float = 1.0
    cap: float = 60.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.cap or not 0 <= self.jitter <= 1:
            raise UsageError(f"{self} makes no sense")

    def delays(self) -> Iterator[float]:
        delay = self.first
        while True:
            yield delay * uniform(1 - self.jitter, 1 + self.jitter)
            delay = min(2 * delay, self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options of a `Producer` or `Consumer`. Immutable: a change is a `dataclasses.replace`.

    The connection:

    - `dial_timeout`: seconds for a TCP connection to come about; 0 waits as long as the system does.
    - `read_timeout`: seconds without a byte from nsqd, heartbeats included, after which it counts as gone.
    - `write_timeout`: seconds in which nsqd must take what is sent, or the connection is given up.
    - `local_addr`: the address to connect from, `host` or `host:port`; None lets the system choose.
    - `reconnect`: the delays before a lost nsqd is dialled again, a `Reconnect`.

    What IDENTIFY tells nsqd:

    - `client_id`: the name of this client in nsqd's statistics; None is the first label of the host name.
    - `hostname`: the host in nsqd's statistics; None asks the system.
    - `user_agent`: the program in nsqd's statistics.
    - `heartbeat_interval`: seconds between nsqd's heartbeats, 1 or more and at most `read_timeout`. A
      producer may turn them off with -1.
    - `sample_rate`: the percentage of messages that nsqd delivers on this connection; 0 delivers all.
    - `msg_timeout`: seconds, 1 or more, after which nsqd delivers an unanswered message again; None is what
      nsqd has as `--msg-timeout`.
    - `output_buffer_size`: bytes that nsqd may collect before it sends; -1 turns collecting off.
    - `output_buffer_timeout`: seconds that nsqd may collect for; -1 turns the limit off.

    Features:

    - `tls`: False, True (the system's roots, TLS 1.2 or newer), or an `ssl.SSLContext`.
    - `tls_required`: whether an nsqd that does not grant TLS is an error; otherwise it gets plain text.
    - `compression`: `"snappy"`, `"deflate"` or None.
    - `deflate_level`: 1 (fast) to 9 (small).
    - `auth_secret`: the secret for nsqds that want AUTH.

    Consuming:

    - `max_in_flight`: how many messages are taken and unanswered at once, over all nsqds together. None is
      the concurrency of `Consumer.run`, and 1 without `run`.
    - `max_attempts`: a message that was delivered more often is given up; 0 never gives up.
    - `default_requeue_delay`: seconds of a requeue that does not say how long, times the attempts so far.
    - `max_requeue_delay`: the most seconds that this product may be.
    - `backoff`: how the consumer slows down when handlers fail: `Exponential`, `FullJitter`, or None.
    - `low_rdy_idle_timeout`: with fewer places than nsqds, an nsqd without messages loses its place after
      this many seconds.
    - `low_rdy_timeout`: and an nsqd with messages after this many.
    - `rdy_redistribute_interval`: seconds between two looks at which connections have RDY.

    Discovery:

    - `lookupd_poll_interval`: seconds between two questions to the nsqlookupds. As long as none has listed
      an nsqd, they are asked sooner: after 1, 2, 4, … seconds.
    - `lookupd_poll_jitter`: the share of the interval that is added by chance to the first one, and a tenth
      of it to later ones.
    - `lookupd_poll_timeout`: seconds for an nsqlookupd to answer; 0 waits for ever.
    - `lookupd_authorization`: whether nsqlookupds get `auth_secret`, as a bearer token.
    - `drop_missing_after`: leave an nsqd that this many polls in a row did not list; None never does.

    Publishing:

    - `max_msg_size`: the longest body in bytes, if it should be less than nsqd's `--max-msg-size`. nsquark's
      nsqd tells its limit. An nsqd that does not tell closes the connection over a longer body, so set this
      to its limit.
    - `max_body_size`: the largest MPUB in bytes, likewise for nsqd's `--max-body-size`. Lists are split at
      5 MiB when nsqd does not tell.
    """

    dial_timeout: float = 1.0
    read_timeout: float = 60.0
    write_timeout: float = 1.0
    local_addr: str | None = None
    reconnect: Reconnect = Reconnect()
    client_id: str | None = None
    hostname: str | None = None
    user_agent: str = LIBRARY
    heartbeat_interval: float = 30.0
    sample_rate: int = 0
    msg_timeout: float | None = None
    output_buffer_size: int = 16384
    output_buffer_timeout: float = 0.25
    tls: ssl.SSLContext | bool = False
    tls_required: bool = True
    compression: Literal["snappy", "deflate"] | None = None
    deflate_level: int = 6
    auth_secret: str | None = field(default=None, repr=False)
    max_in_flight: int | None = None
    max_attempts: int = 5
    default_requeue_delay: float = 90.0
    max_requeue_delay: float = 900.0
    backoff: Backoff | None = field(default_factory=Exponential)
    low_rdy_idle_timeout: float = 10.0
    low_rdy_timeout: float = 30.0
    rdy_redistribute_interval: float = 5.0
    lookupd_poll_interval: float = 60.0
    lookupd_poll_jitter: float = 0.3
    lookupd_poll_timeout: float = 60.0
    lookupd_authorization: bool = True
    drop_missing_after: int | None = None
    max_msg_size: int | None = None
    max_body_size: int | None = None

    def __post_init__(self) -> None:
        for name in _RANGES:
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            try:
                _check_range(name, value)
            except ValueError as error:
                raise UsageError(f"{name} {value!r} is {error}") from None
        if self.heartbeat_interval > self.read_timeout:
            raise UsageError(
                f"heartbeat_interval {self.heartbeat_interval!r} is longer than"
                f" read_timeout {self.read_timeout!r}"
            )
        if self.low_rdy_timeout < self.low_rdy_idle_timeout:
            raise UsageError(
                f"low_rdy_timeout {self.low_rdy_timeout!r} is shorter than"
                f" low_rdy_idle_timeout {self.low_rdy_idle_timeout!r}"
            )
        if self.compression not in (None, "snappy", "deflate"):
            raise UsageError(f"compression {self.compression!r} is neither 'snappy' nor 'deflate'")

    @classmethod
    def from_options(cls, options: Iterable[str], base: Config | None = None) -> Config:
        """The options `name,value` on top of `base`; a bare name is a true boolean.

        Raises UsageError naming the option that is unknown, cannot be read or is out of range.
        """
        given = _Options()
        for option in options:
            name, comma, value = option.partition(",")
            given.set(name, value if comma else None)
        return given.config(base if base is not None else cls())

    def identify(self) -> dict[str, object]:
        """The document of IDENTIFY. `short_id` and `long_id` are for very old servers."""
        hostname = gethostname() if self.hostname is None else self.hostname
        client_id = hostname.partition(".")[0] if self.client_id is None else self.client_id
        return {
            "client_id": client_id,
            "hostname": hostname,
            "user_agent": self.user_agent,
            "short_id": client_id,
            "long_id": hostname,
            "feature_negotiation": True,
            "tls_v1": self.tls is not False,
            "snappy": self.compression == "snappy",
            "deflate": self.compression == "deflate",
            "deflate_level": self.deflate_level,
            "heartbeat_interval": milliseconds(self.heartbeat_interval),
            "sample_rate": self.sample_rate,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": milliseconds(self.output_buffer_timeout),
            "msg_timeout": milliseconds(self.msg_timeout or 0.0),
        }

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context to upgrade with, if TLS is asked for."""
        if self.tls is True:
            context = ssl.create_default_context()
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            return context
        return self.tls or None


def check_option(option: str) -> None:
    """Raise UsageError if `name,value` names no option, cannot be read or is out of range by itself."""
    name, comma, value = option.partition(",")
    _Options().set(name, value if comma else None)


def milliseconds(duration: float) -> int:
    """Whole milliseconds, as on the wire. -1, which turns an option off, stays -1."""
    # 0.29 s is 289.99… ms in floats and should be 290
    return -1 if duration == -1 else math.floor(duration * 1000 + 1e-6)


def _check_range(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a number that the option takes."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    low, high = _RANGES[name]
    if value in _SPECIAL.get(name, ()) or low <= value <= high:
        return
    special = "".join(f", and not {each}" for each in _SPECIAL.get(name, ()))
    raise ValueError(f"not within {low} and {high}{special}")


_FOREVER = math.inf
_INT32 = (1 << 31) - 1
# Values outside the range that turn the option off, or ask for the default of nsqd.
_SPECIAL: dict[str, tuple[int, ...]] = {
    "heartbeat_interval": (-1,),
    "msg_timeout": (0,),
    "output_buffer_size": (-1, 0),
    "output_buffer_timeout": (-1, 0),
}
_MAY_BE_NONE = {"msg_timeout", "max_in_flight", "drop_missing_after", "max_msg_size", "max_body_size"}
_RANGES: dict[str, tuple[float, float]] = {
    "dial_timeout": (0, _FOREVER),
    "read_timeout": (0.1, 300),
    "write_timeout": (0.1, 300),
    "lookupd_poll_interval": (0.01, 300),
    "lookupd_poll_jitter": (0, 1),
    "lookupd_poll_timeout": (0, _FOREVER),
    "max_requeue_delay": (0, 3600),
    "default_requeue_delay": (0, 3600),
    "max_attempts": (0, 65535),
    "low_rdy_idle_timeout": (1, 300),
    "low_rdy_timeout": (1, 300),
    "rdy_redistribute_interval": (0.001, 5),
    "heartbeat_interval": (1, 300),
    "sample_rate": (0, 99),
    "deflate_level": (1, 9),
    "max_in_flight": (0, _INT32),
    "msg_timeout": (1, _INT32 / 1000),
    "output_buffer_size": (64, _INT32),
    "output_buffer_timeout": (0.001, _INT32 / 1000),
    "drop_missing_after": (1, _FOREVER),
    "max_msg_size": (1, 1 << 30),
    "max_body_size": (1, 1 << 30),
}

DEFAULT_CONFIG = Config()

# nsqd's own defaults, for an nsqd that does not tell its limits.
DEFAULT_MAX_MSG_SIZE = 1 << 20
DEFAULT_MAX_BODY_SIZE = 5 << 20

# How each option is read. Some are fields of Config, the rest is put together in `_Options.config`.
_DURATIONS = {
    "dial_timeout", "read_timeout", "write_timeout", "lookupd_poll_interval", "lookupd_poll_timeout",
    "max_requeue_delay", "default_requeue_delay", "low_rdy_idle_timeout", "low_rdy_timeout",
    "rdy_redistribute_interval", "heartbeat_interval", "output_buffer_timeout", "msg_timeout",
    "max_backoff_duration", "backoff_multiplier",
}  # fmt: skip
_INTEGERS = {
    "max_attempts", "sample_rate", "deflate_level", "output_buffer_size", "max_in_flight",
    "max_msg_size", "max_body_size",
}  # fmt: skip
_BOOLEANS = {"tls_v1", "deflate", "snappy", "tls_insecure_skip_verify", "skip_lookupd_authorization"}
_FLOATS = {"lookupd_poll_jitter"}
_STRINGS = {
    "local_addr", "client_id", "hostname", "user_agent", "auth_secret", "backoff_strategy",
    "tls_root_ca_file", "tls_cert", "tls_key", "tls_min_version",
}  # fmt: skip


class _Options:
    """Options by name, as the command line brings them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def set(self, name: str, text: str | None) -> None:
        name = name.replace("-", "_")
        try:
            value = _parse(name, text)
            if name in _RANGES:
                _check_range(name, value)
        except ValueError as error:
            raise UsageError(f"option {name}: {error}") from None
        self.values[name] = value

    def config(self, base: Config) -> Config:
        values = dict(self.values)
        if values.get("snappy") and values.get("deflate"):
            raise UsageError("options snappy and deflate exclude each other")
        for compression in ("snappy", "deflate"):
            if values.pop(compression, False):
                values["compression"] = compression
        if {"backoff_strategy", "max_backoff_duration", "backoff_multiplier"} & values.keys():
            values["backoff"] = _backoff(values)
        tls = {name: values.pop(name) for name in list(values) if name.startswith("tls_")}
        if tls.get("tls_v1", base.tls):
            values["tls"] = _context(tls) if len(tls) > ("tls_v1" in tls) else base.tls or True
        elif tls:
            values["tls"] = False
        # misnamed in NSQ: true means that the secret is sent
        if "skip_lookupd_authorization" in values:
            values["lookupd_authorization"] = values.pop("skip_lookupd_authorization")
        names = {each.name for each in fields(Config)}
        assert values.keys() <= names
        return replace(base, **values)


def _parse(name: str, text: str | None) -> Any:
    if name in _BOOLEANS:
        return text is None or parse_bool(text)
    if name not in _DURATIONS | _INTEGERS | _FLOATS | _STRINGS:
        raise ValueError("there is no such option")
    if text is None:
        raise ValueError("it needs a value")
    if name in _DURATIONS:
        return seconds(parse_duration(text))
    if name in _INTEGERS:
        return parse_int(text, 10)
    if name in _FLOATS:
        return parse_float(text)
    if name == "backoff_strategy" and text not in ("", "exponential", "full_jitter"):
        raise ValueError(f"{text!r} is neither exponential nor full_jitter")
    if name == "tls_min_version" and text not in TLS_VERSIONS:
        raise ValueError(f"{text!r} is none of {', '.join(TLS_VERSIONS)}")
    return text


def _backoff(values: dict[str, Any]) -> Backoff:
    kind = FullJitter if values.pop("backoff_strategy", "") == "full_jitter" else Exponential
    multiplier, cap = values.pop("backoff_multiplier", 1.0), values.pop("max_backoff_duration", 120.0)
    return kind(multiplier=multiplier, cap=cap)


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("tls_root_ca_file"))
        context.minimum_version = TLS_VERSIONS[options.get("tls_min_version", "tls1.2")]
        if "tls_cert" in options or "tls_key" in options:
            if not ("tls_cert" in options and "tls_key" in options):
                raise UsageError("options tls_cert and tls_key go together")
            context.load_cert_chain(options["tls_cert"], options["tls_key"])
    except OSError as error:
        names = ", ".join(
            str(value) for key, value in options.items() if key in ("tls_root_ca_file", "tls_cert")
        )
        raise UsageError(f"TLS files {names}: {error}") from None
    if options.get("tls_insecure_skip_verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
