"""Which modules are compiled, and whether all of them are.

Some exist once, as a `.py`: they run as the extension module that lies beside it, or as the `.py`. Compiled
modules include each other's classes as C, so they all run compiled or none does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader

# Written in Cython, on raw pointers. Nothing includes the others than the kernel, so each can be left out:
# `socket_poll` is Linux's, and without `tls_records` pyOpenSSL does its work.
KERNEL = "nsquark.kernel.fast"
CYTHON_MODULES = (
    KERNEL,
    "nsquark.nsqd.protocol.socket_poll",
    "nsquark.wire.tls_records",
)

# Plain Python, with the C types in a .pxd beside the .py. The same .py runs where it is not compiled.
PYTHON_MODULES = (
    "nsquark.http.server.message",
    "nsquark.http.server.router",
    "nsquark.http.server.reader",
    "nsquark.http.server.connection",
    "nsquark.log.segment",
    "nsquark.log.tail",
    "nsquark.log.files",
    "nsquark.log.topic_log",
    "nsquark.log.cursor",
    "nsquark.log.journal.records",
    "nsquark.nsqd.stats.histogram",
    "nsquark.nsqd.core.answers",
    "nsquark.nsqd.core.publish",
    "nsquark.nsqd.core.turn",
    "nsquark.nsqd.core.topic",
    "nsquark.nsqd.core.topic_channels",
    "nsquark.nsqd.core.in_flight",
    "nsquark.nsqd.core.consumer",
    "nsquark.nsqd.core.redelivery",
    "nsquark.nsqd.core.dead_lettering",
    "nsquark.nsqd.core.backlog",
    "nsquark.nsqd.core.delivery",
    "nsquark.nsqd.core.channel",
    "nsquark.nsqd.core.commit_gate",
    "nsquark.nsqd.protocol.lingering",
    "nsquark.nsqd.replica.automaton.actions",
    "nsquark.nsqd.replica.automaton.commit_rule",
    "nsquark.nsqd.replica.automaton.leading",
    "nsquark.nsqd.replica.automaton.following",
    "nsquark.nsqd.replica.automaton.automaton",
    "nsquark.nsqd.replica.changes.frames",
    "nsquark.nsqd.replica.changes.recorder",
    "nsquark.nsqd.replica.changes.stream",
    "nsquark.nsqd.replica.copy.fetching",
    "nsquark.nsqd.replica.copy.warm_copy",
    "nsquark.nsqd.replica.copy.standby",
    "nsquark.nsqd.replica.member.leadership",
    "nsquark.nsqd.replica.member.stream_reports",
    "nsquark.nsqd.replica.member.performing",
)


def not_compiled(root: str) -> list[str]:
    """The modules that have no extension module and should; `root` is the folder of the package `nsquark`.

    A compiler that fails for one module leaves the others: such a mix cannot be imported.
    """
    return [
        module
        for module in (KERNEL, *PYTHON_MODULES)
        if not _is_compiled(os.path.join(root, *module.split(".")))
    ]


def _is_compiled(path: str) -> bool:
    return any(os.path.exists(path + suffix) for suffix in EXTENSION_SUFFIXES)


def import_sources_only(path: Iterable[str]) -> None:
    """Make the package with this `__path__` import its modules from their `.py`, beside whatever they lie.

    The package has to call this before it imports the first of its modules. A zip is left alone, as Python
    imports nothing but sources from it.
    """
    for folder in filter(os.path.isdir, path):
        sys.path_importer_cache[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
