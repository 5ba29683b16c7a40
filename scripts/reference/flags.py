"""The page of all flags, made from the flag sets and commands of the programs themselves."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from nsquark.cli.flags import FlagSet

# A program, the module that has its FLAGS, and what it is.
PROGRAMS: dict[str, tuple[str, str]] = {
    "nsqd": ("nsquark.nsqd.options", "the broker"),
    "nsqlookupd": ("nsquark.nsqlookupd.options", "the directory"),
    "nsqadmin": ("nsquark.nsqadmin.options", "the cluster in a browser"),
    "to_nsq": ("nsquark.tools.to_nsq.options", "lines of stdin into a topic"),
    "nsq_tail": ("nsquark.tools.nsq_tail.options", "a topic on the terminal"),
    "nsq_stat": ("nsquark.tools.nsq_stat.options", "counters of a channel"),
    "nsq_to_file": ("nsquark.tools.nsq_to_file.options", "topics into files"),
    "nsq_to_http": ("nsquark.tools.nsq_to_http.options", "a topic to HTTP endpoints"),
    "nsq_to_nsq": ("nsquark.tools.nsq_to_nsq.options", "a topic into another"),
}

HEAD = """\
# Flags

Made from the programs when this site is built. Flags have NSQ's syntax: one dash or two, `--flag=value` or
`--flag value`. Each may stand in a TOML file that `--config` names, under the key of the last column; the
command line beats the file.
"""


def flag_sets() -> Iterator[tuple[str, str, FlagSet[Any]]]:
    """Each program and subcommand that has flags of NSQ's kind: its name, what it is, its flags."""
    for program, (module, what) in PROGRAMS.items():
        yield program, what, import_module(module).FLAGS
    from nsquark.pipeline.flags.subcommands import SUBCOMMANDS

    for each in SUBCOMMANDS.values():
        yield f"nsq_to_spark {each.name}", each.summary, FlagSet(f"nsq_to_spark {each.name}", each.options)


def page() -> str:
    parts = [HEAD]
    for program, what, flags in flag_sets():
        parts += [f"\n## {program}\n\n{_sentence(what)}\n\n", _table(flags)]
    parts.append("\n## nsquark\n\nThe command for people. Each subcommand has `--help`.\n")
    for name, text in command_helps():
        parts.append(f"\n### {name}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _table(flags: FlagSet[Any]) -> str:
    rows = ["| flag | | default | in the file |\n|---|---|---|---|\n"]
    for flag in sorted(flags.flags.values(), key=lambda each: each.name):
        default = "" if flag.name == "broadcast-address" else flag.kind.default_shown(flag.default())
        told = f"deprecated: {flag.deprecated}" if flag.deprecated else flag.help
        named = f"`--{flag.name}`{_value(flag.kind.word)}"
        rows.append(f"| {named} | {_cell(told)} | {_code(default)} | {_code(flag.key or '')} |\n")
    for old, new in sorted(flags.renamed.items()):
        rows.append(f"| `--{old}` | the old name of `--{new}` | | |\n")
    return "".join(rows)


def command_helps() -> Iterator[tuple[str, str]]:
    """The help of `nsquark` and of everything below it, as a terminal of 100 columns shows it."""
    from nsquark.tools.people.program import program

    yield from _helps("nsquark", program, None)


def _helps(path: str, command: click.Command, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _helps(f"{path} {name}", below, context)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _value(word: str) -> str:
    return f" *{word}*" if word else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""
