"""The subcommands of `nsquark`, by name. A module is imported when its command is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

# A command `x-y` is `command` in the module `commands/x_y.py`, or in the module that is named here.
# To add one: its name, its module ("" for the one of its name), and a line for `nsquark --help`.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("", "Run nsqlookupd, nsqd and nsqadmin in one process."),
    "pub": ("", "Publish messages: words, lines of stdin, files."),
    "tail": ("", "Print messages as they come, or from the log."),
    "peek": ("", "Look at messages of a topic or channel without taking them."),
    "stat": ("", "Show topics and channels, once."),
    "top": ("", "Show topics and channels, live."),
    "topic": ("", "List, create, pause, empty and delete topics."),
    "channel": ("", "List, create, pause, move, empty and delete channels."),
    "dead": ("", "List dead letters, show them, send them back."),
    "replica": ("", "Show a replica group, hand over, force a member to lead."),
    "replay": ("", "Publish a part of a topic's log again."),
    "bench": ("", "Measure an nsqd."),
    "check": ("", "Check a data directory, and repair it."),
    "dump": ("", "Print the messages of a segment or a topic from the disk."),
    "backup": ("", "Copy the data directory of an nsqd, also of a running one."),
    "export": ("", "Write what a stopped nsqd has not finished as a directory of Go's nsqd."),
    "completion": ("", "Print the completion script of a shell."),
}


class Program(click.Group):
    """A group whose commands are modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = COMMANDS[cmd_name][0] or f"nsquark.tools.people.commands.{cmd_name.replace('-', '_')}"
        command = import_module(module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            if not near or near[0] in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None


def _version(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
    if value:
        from nsquark import kernel
        from nsquark.version import NSQ_VERSION, VERSION

        click.echo(f"nsquark {VERSION} (NSQ {NSQ_VERSION}), {kernel.in_use()}")
        ctx.exit()


@click.command(
    cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
def program() -> None:
    """nsquark: NSQ from a terminal.

    Addresses come from flags, from the environment (NSQUARK_NSQD_HTTP, NSQUARK_NSQD_TCP,
    NSQUARK_LOOKUPD_HTTP) or from ~/.config/nsquark.toml; without any, from an nsqd on this machine.
    """
