"""NSQ on a durable log. The client library is here by name; the packages inside are imported by theirs.

`Producer`, `Consumer` and the rest are loaded when they are first asked for, so that a daemon does not pay
for them. Errors are in `nsquark.errors`, events in `nsquark.client.events`.
"""

from .version import VERSION as __version__

TYPE_CHECKING = False  # as type checkers know it, without loading `typing`
if TYPE_CHECKING:
    from . import sync
    from .client import (
        Config,
        Consumer,
        Discard,
        Exponential,
        FullJitter,
        Message,
        NsqdHttp,
        NsqlookupdHttp,
        Producer,
        Reconnect,
        Requeue,
    )

__all__ = [
    "Config",
    "Consumer",
    "Discard",
    "Exponential",
    "FullJitter",
    "Message",
    "NsqdHttp",
    "NsqlookupdHttp",
    "Producer",
    "Reconnect",
    "Requeue",
    "__version__",
    "sync",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'nsquark' has no attribute {name!r}")
    from importlib import import_module

    if name == "sync":
        return import_module("nsquark.sync")
    return getattr(import_module("nsquark.client"), name)


def __dir__() -> list[str]:
    return __all__
