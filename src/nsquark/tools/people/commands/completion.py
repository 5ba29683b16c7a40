"""`nsquark completion`: the script that makes a shell complete commands, flags, topics and channels."""

from __future__ import annotations

import click

from nsquark.errors import NsquarkError

from ..failures import Failure
from ..flags.options import Command, settings_of
from ..running import run

# How long a shell may stand still after a Tab.
_PATIENCE = 1.0


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a SHELL.

    \b
    bash:  eval "$(nsquark completion bash)"                      in ~/.bashrc
    zsh:   eval "$(nsquark completion zsh)"                       in ~/.zshrc
    fish:  nsquark completion fish > ~/.config/fish/completions/nsquark.fish
    """
    from click.shell_completion import get_completion_class

    from ..program import program

    kind = get_completion_class(shell)
    if kind is None:
        raise Failure(f"there is no completion for {shell}")
    script = kind(program, {}, "nsquark", "_NSQUARK_COMPLETE")
    # Not `source()`: for bash, that runs bash to see how old it is.
    click.echo(script.source_template % script.source_vars())


def names(context: click.Context, kind: str) -> list[str]:
    """The names of topics, or of the channels of the topic given so far; none if no nsqd answers in time."""
    import asyncio

    from ..cluster.nsqds import Cluster

    async def ask() -> list[str]:
        cluster = Cluster(settings_of(context))
        cluster.trouble = lambda error: None  # type: ignore[method-assign]
        topic = context.params.get("topic") if kind == "channel" else None
        async with asyncio.timeout(_PATIENCE):
            stats = await cluster.stats(await cluster.nsqds(topic), topic)
        topics = [each for _, answer in stats for each in answer.get("topics") or ()]
        if kind == "topic":
            return sorted({each["topic_name"] for each in topics})
        return sorted({channel["channel_name"] for each in topics for channel in each["channels"] or ()})

    try:
        return run(ask())
    except (NsquarkError, OSError, click.ClickException, TimeoutError):
        return []
