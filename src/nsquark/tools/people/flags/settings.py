"""Where the daemons are and how to reach them: from flags, the environment, or a TOML file, in that order.

Addresses come from the first of these that names any, all of them from there: `--lookupd-http` on the command
line is not mixed with the `nsqd_http` of a file. Every other setting is looked for by itself. Without any
address, nsqd is where it listens by default, on this machine.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nsquark.errors import UsageError

from .quantities import parse_seconds

if TYPE_CHECKING:
    from nsquark.client import Config

ADDRESSES: Final = ("nsqd_http", "nsqd_tcp", "lookupd_http")
DEFAULT: Final = {"nsqd_http": ("127.0.0.1:4151",), "nsqd_tcp": ("127.0.0.1:4150",)}
_TEXTS: Final = ("tls_ca", "tls_cert", "tls_key", "secret", "secret_file", "timeout")
_SWITCHES: Final = ("tls", "tls_insecure")
KEYS: Final = (*ADDRESSES, *_TEXTS, *_SWITCHES)
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """`nsqd_http`, `nsqd_tcp` and `lookupd_http` are addresses; the rest says how to talk to them."""

    nsqd_http: tuple[str, ...] = ()
    nsqd_tcp: tuple[str, ...] = ()
    lookupd_http: tuple[str, ...] = ()
    timeout: float = 5.0
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure: bool = False
    secret: str = field(default="", repr=False)

    @property
    def asks_for_tls(self) -> bool:
        return self.tls or bool(self.tls_ca or self.tls_cert) or self.tls_insecure

    def ssl_context(self) -> ssl.SSLContext:
        """Raises UsageError naming the file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except OSError as error:
            raise UsageError(f"--tls-ca {self.tls_ca}: {error.strerror or error}") from None
        if self.tls_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
            except OSError as error:
                names = f"--tls-cert {self.tls_cert}" + (
                    f", --tls-key {self.tls_key}" if self.tls_key else ""
                )
                raise UsageError(f"{names}: {error.strerror or error}") from None
        return context

    def client_config(self, **options: Any) -> Config:
        """The options of a Producer or Consumer."""
        from nsquark.client import Config

        return Config(
            dial_timeout=self.timeout,
            tls=self.ssl_context() if self.asks_for_tls else False,
            auth_secret=self.secret or None,
            **options,
        )


def gather(flags: Mapping[str, Any], environment: Mapping[str, str], config: str | None = None) -> Settings:
    """The settings. `flags` has what was given, by key; `config` is the file that was named, if any.

    Raises UsageError naming the flag, variable or file that is wrong.
    """
    given = {key: value for key, value in flags.items() if value not in (None, (), "")}
    layers = [given, _from_environment(environment)]
    path = config or environment.get("NSQUARK_CONFIG") or ""
    layers.append(_from_file(path or default_path(environment), must_exist=bool(path)))
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        if any(key in layer for key in ADDRESSES):
            for key in ADDRESSES:
                values.pop(key, None)
        values |= layer
    if not any(key in values for key in ADDRESSES):
        values |= DEFAULT
    # A secret by name and one by file exclude each other; the one nearer to the command line counts.
    for layer in layers:
        if "secret" in layer:
            break
        if "secret_file" in layer:
            values["secret"] = _read_secret(layer["secret_file"])
            break
    values.pop("secret_file", None)
    for key in ADDRESSES:  # one that is named twice would be counted twice
        if key in values:
            values[key] = tuple(dict.fromkeys(values[key]))
    values["timeout"] = parse_seconds(str(values.get("timeout", "5s")))
    if values["timeout"] == 0:
        raise UsageError("timeout '0' leaves no time for an answer")
    return Settings(**values)


def default_path(environment: Mapping[str, str]) -> str:
    """`nsquark.toml` in the user's folder for configurations, by XDG's rules: a relative one is ignored."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(folder, "nsquark.toml")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in KEYS:
        name = f"NSQUARK_{key.upper()}"
        text = environment.get(name, "")
        if not text:
            continue
        if key in ADDRESSES:
            found[key] = tuple(text.replace(",", " ").split())
        elif key in _SWITCHES:
            if text.lower() not in _TRUE + _FALSE:
                raise UsageError(f"{name}={text!r} is neither true nor false")
            found[key] = text.lower() in _TRUE
        else:
            found[key] = text
    return found


def _from_file(path: str, *, must_exist: bool) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except FileNotFoundError:
        if must_exist:
            raise UsageError(f"config file {path}: there is no such file") from None
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"config file {path}: {getattr(error, 'strerror', None) or error}") from None
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key not in KEYS:
            raise UsageError(f"config file {path}: there is no setting {key!r}, only {', '.join(KEYS)}")
        if key in ADDRESSES and isinstance(value, str | list):
            addresses = [value] if isinstance(value, str) else value
            if all(isinstance(each, str) for each in addresses):
                found[key] = tuple(addresses)
                continue
        elif (key in _SWITCHES and isinstance(value, bool)) or (key in _TEXTS and isinstance(value, str)):
            # A file is named from where the file that names it lies.
            if key in ("tls_ca", "tls_cert", "tls_key", "secret_file"):
                value = os.path.join(os.path.dirname(path), os.path.expanduser(str(value)))
            found[key] = value
            continue
        elif key == "timeout" and isinstance(value, int | float):
            found[key] = str(value)
            continue
        raise UsageError(f"config file {path}: {key} = {value!r} is not what {key} takes")
    return found


def _read_secret(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(65536).strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"secret file {path}: {getattr(error, 'strerror', None) or 'no text'}") from None
