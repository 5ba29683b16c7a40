"""What the commands' options and arguments have in common: names, places, durations, where to connect."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from nsquark.errors import UsageError
from nsquark.names import is_valid_name

from ..failures import Failure
from .quantities import parse_kept_size, parse_kept_time, parse_seconds, parse_size
from .settings import Settings, gather

_F = TypeVar("_F", bound=Callable[..., Any])
_SECTION: Final = "Where to connect"


class _Type(click.ParamType):  # type: ignore[type-arg]
    """click 8.1, unlike 8.5, has no type arguments here."""


class Name(_Type):
    """The name of a topic or channel. A wrong one is a failure that names it."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_valid_name(value):
            raise Failure(
                f"{self.name} {value!r} is no valid name: 1 to 64 of a-z, A-Z, 0-9, '.', '_', '-',"
                " and '#ephemeral' at its end"
            )
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from ..commands.completion import names

        return [CompletionItem(each) for each in names(ctx, self.name) if each.startswith(incomplete)]


class Seconds(_Type):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_seconds(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Size(_Type):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Kept(_Type):
    """How much of a log to keep, as text that nsqd understands."""

    def __init__(self, name: str, parse: Callable[[str], str]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(f"{error}, or unlimited, or default", param, ctx)


class PlaceType(_Type):
    """A place in a log."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ...log_place import Place, parse_place

        if isinstance(value, Place):
            return value
        try:
            return parse_place(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


TOPIC: Final = Name("topic")
CHANNEL: Final = Name("channel")
SECONDS: Final = Seconds()
SIZE: Final = Size()
PLACE: Final = PlaceType()
KEPT_TIME: Final = Kept("duration", parse_kept_time)
KEPT_SIZE: Final = Kept("size", parse_kept_size)
UNLIMITED: Final = "unlimited"


class Command(click.Command):
    """A command whose help tells where to connect in a section of its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        connecting: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                (connecting if param.name in _CONNECTING_NAMES else own).append(record)
        with formatter.section("Options"):
            formatter.write_dl(own)
        if connecting:
            with formatter.section(_SECTION):
                formatter.write_dl(connecting)


# What every command that connects takes, by the key of the setting.
_CONNECTING: Final = (
    (("--nsqd-http", "--nsqd-http-address", "nsqd_http"), "HTTP address of an nsqd (may be repeated).", True),
    (("--nsqd-tcp", "--nsqd-tcp-address", "nsqd_tcp"), "TCP address of an nsqd (may be repeated).", True),
    (
        ("--lookupd-http", "--lookupd-http-address", "lookupd_http"),
        "HTTP address of an nsqlookupd, to find the nsqds by (may be repeated).",
        True,
    ),
    (("--timeout", "timeout"), "How long a daemon may take to answer (default 5s).", False),
    (("--tls-ca", "tls_ca"), "File with the certificate authority of the daemons; asks for TLS.", False),
    (("--tls-cert", "tls_cert"), "File with the certificate to show.", False),
    (("--tls-key", "tls_key"), "File with the key of that certificate.", False),
    (("--secret-file", "secret_file"), "File with the secret for AUTH and for HTTP.", False),
)
_CONNECTING_NAMES: Final = {names[-1] for names, _, _ in _CONNECTING} | {"config", "tls", "tls_insecure"}


def connecting(command: _F) -> _F:
    """The options that say where to connect; the command gets them together as `settings`."""

    @wraps(command)  # click keeps a function's options in its attributes
    def with_settings(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        kwargs["settings"] = settings_of(context)
        for name in _CONNECTING_NAMES:
            kwargs.pop(name, None)
        return command(*args, **kwargs)

    wrapped: Any = with_settings
    files = click.Path(dir_okay=False)
    for option in (
        click.option("--config", type=files, help="Config file (default ~/.config/nsquark.toml)."),
        click.option("--tls-insecure", is_flag=True, default=None, help="TLS without a check."),
        click.option("--tls", is_flag=True, default=None, help="TLS, with the system's roots."),
    ):
        wrapped = option(wrapped)
    for names, text, multiple in reversed(_CONNECTING):
        kind = files if names[0].endswith(("-ca", "-cert", "-key", "-file")) else None
        wrapped = click.option(*names, multiple=multiple, type=kind, help=text)(wrapped)
    return wrapped  # type: ignore[no-any-return]


def settings_of(context: click.Context) -> Settings:
    """The settings for the command of a context. Raises click.UsageError."""
    flags = {name: context.params.get(name) for name in _CONNECTING_NAMES}
    config = flags.pop("config", None)
    try:
        return gather(flags, os.environ, config)
    except UsageError as error:
        raise click.UsageError(str(error), context) from None


def json_option(command: _F) -> _F:
    return click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")(command)


def yes_option(command: _F) -> _F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, yes: bool) -> None:
    """Return if a person says yes. Raises Failure if not, or if there is no person and no `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on: say --yes")
    if not click.confirm(question, err=True):
        raise Failure("nothing was done")
