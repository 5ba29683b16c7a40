"""`nsquark up`: nsqlookupd, nsqd and nsqadmin in one process and one event loop, for small installs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import click

from nsquark.cli import logs, process
from nsquark.cli.flags import StartError
from nsquark.net.addresses import join_address, split_address
from nsquark.nsqadmin import installed
from nsquark.nsqadmin import options as nsqadmin_options
from nsquark.nsqd import options as nsqd_options
from nsquark.nsqd.importing.starting import take_over
from nsquark.nsqd.options_check import validate
from nsquark.nsqd.protocol.certificates import Certificates
from nsquark.nsqd.server import Server as Nsqd
from nsquark.nsqd.storage import daemon_threads
from nsquark.nsqd.storage.data_path import lock_data_path
from nsquark.nsqlookupd import options as nsqlookupd_options
from nsquark.nsqlookupd.server import Server as Nsqlookupd
from nsquark.tools.people.failures import Failure, say
from nsquark.tools.people.flags.options import Command
from nsquark.tools.people.output import print_json

logger = logging.getLogger("nsquark.up")

_LEVELS: Final = ("debug", "info", "warn", "error", "fatal")
_TEXT: Final = """\
nsqd        TCP {nsqd_tcp}, HTTP {nsqd_http}, data in {data_path}
nsqlookupd  TCP {lookupd_tcp}, HTTP {lookupd_http}
nsqadmin    {admin_page}

publish:    nsquark pub test hello{nsqd_flag}
look:       nsquark tail test --from earliest{http_flag}
watch:      nsquark top{http_flag}
by HTTP:    curl -d hello 'http://{nsqd_http}/pub?topic=test'
look up:    curl 'http://{lookupd_http}/lookup?topic=test'

Ctrl-C stops everything."""


@click.command("up", cls=Command)
@click.option("--data-path", default="data", show_default=True, help="nsqd's data; made if it is not there.")
@click.option("--nsqd-tcp-address", default="127.0.0.1:4150", show_default=True, help="nsqd listens there.")
@click.option("--nsqd-http-address", default="127.0.0.1:4151", show_default=True, help="nsqd's HTTP.")
@click.option("--lookupd-tcp-address", default="127.0.0.1:4160", show_default=True, help="nsqlookupd's TCP.")
@click.option(
    "--lookupd-http-address", default="127.0.0.1:4161", show_default=True, help="nsqlookupd's HTTP."
)
@click.option("--admin-http-address", default="127.0.0.1:4171", show_default=True, help="nsqadmin's pages.")
@click.option("--broadcast-address", help="How others reach this machine (default: 127.0.0.1, or its name).")
@click.option("--log-level", type=click.Choice(_LEVELS), default="warn", show_default=True, help="On stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.argument("nsqd_flags", nargs=-1, type=click.UNPROCESSED)
def command(
    data_path: str,
    nsqd_tcp_address: str,
    nsqd_http_address: str,
    lookupd_tcp_address: str,
    lookupd_http_address: str,
    admin_http_address: str,
    broadcast_address: str | None,
    log_level: str,
    as_json: bool,
    nsqd_flags: tuple[str, ...],
) -> None:
    """Run nsqlookupd, nsqd and nsqadmin in one process, until Ctrl-C.

    They listen on this machine only; 0.0.0.0:4150 and so on opens them to others. NSQD_FLAGS behind `--` go
    to nsqd as they are. Ctrl-C and SIGTERM are how it is meant to end: the exit status is then 0.

    \b
    nsquark up --data-path /var/lib/nsq -- --retention-time=24h --max-attempts=5
    """
    flags = {
        "--nsqd-tcp-address": nsqd_tcp_address,
        "--nsqd-http-address": nsqd_http_address,
        "--lookupd-tcp-address": lookupd_tcp_address,
        "--lookupd-http-address": lookupd_http_address,
        "--admin-http-address": admin_http_address,
    }
    host = broadcast_address or _broadcast(flags.values())
    try:
        os.makedirs(data_path, exist_ok=True)
    except OSError as error:
        raise Failure(f"--data-path {data_path}: {error.strerror}") from None
    logs.set_up("[nsquark] ", log_level)
    try:
        nsqlookupd = nsqlookupd_options.parse(
            [
                f"--tcp-address={lookupd_tcp_address}",
                f"--http-address={lookupd_http_address}",
                f"--broadcast-address={host}",
            ]
        )
        nsqd = nsqd_options.parse(
            [
                f"--data-path={data_path}",
                f"--tcp-address={nsqd_tcp_address}",
                f"--http-address={nsqd_http_address}",
                f"--broadcast-address={host}",
                *nsqd_flags,
            ]
        )
        if nsqd.import_ == "check":
            raise StartError("--import=check is for nsqd alone, as it serves nothing")
        nsqlookupd_options.validate(nsqlookupd)
        lock_data_path(data_path)
        certificates = Certificates(nsqd)
        validate(nsqd, certificates.load_server, certificates.load_client)
        process.allow_many_files()
        stored = process.run(_serve(nsqlookupd, nsqd, certificates, admin_http_address, as_json))
    except StartError as error:
        logs.flush()
        raise Failure(_explain(error, flags)) from None
    logs.flush()
    if not stored:
        raise Failure("nsqd could not store everything: see its log above")
    if daemon_threads.are_left():
        process.leave(0)


async def _serve(
    nsqlookupd: nsqlookupd_options.Options,
    nsqd: nsqd_options.Options,
    certificates: Certificates,
    admin_http_address: str,
    as_json: bool,
) -> bool:
    """Serve until a signal comes; returns whether everything could be stored then."""
    process.collect_seldom()
    stop = process.stop_signal()
    # In the order of their start; they stop in the other.
    running: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    stored = True
    try:
        if not await take_over(nsqd, stop):
            return True
        directory = Nsqlookupd(nsqlookupd)
        await directory.start()
        running.append(("nsqlookupd", directory.stop))
        lookupd_tcp = _reachable(nsqlookupd.tcp_address, directory.tcp_port)
        nsqd.lookupd_tcp_address = [*nsqd.lookupd_tcp_address, lookupd_tcp]
        broker = Nsqd(nsqd, certificates)
        await broker.start()
        running.append(("nsqd", broker.stop))
        if certificates.offered:
            process.on_hangup(broker.reload)
        lookupd_http = _reachable(nsqlookupd.http_address, directory.http_port)
        admin_http = await _start_nsqadmin(admin_http_address, lookupd_http, running)
        _tell(
            {
                "nsqd_tcp": _reachable(nsqd.tcp_address, broker.broker.tcp_port),
                "nsqd_http": _reachable(nsqd.http_address, broker.broker.http_port),
                "lookupd_tcp": lookupd_tcp,
                "lookupd_http": lookupd_http,
                "admin_http": admin_http,
                "data_path": nsqd.data_path,
                "pid": str(os.getpid()),
            },
            as_json,
        )
        await stop.wait()
    finally:
        for name, stop_it in reversed(running):
            stored &= await stop_it() is not False
            logger.info("%s has stopped", name)
    if not as_json:
        say("stopped; what was published is in " + nsqd.data_path)
    return stored


async def _start_nsqadmin(
    address: str, lookupd_http: str, running: list[tuple[str, Callable[[], Awaitable[object]]]]
) -> str:
    """Where it can be reached; empty where it is not installed, and then everything else runs without it."""
    try:
        installed.require()
    except StartError as error:
        logger.warning("%s", error)
        return ""
    from nsquark.nsqadmin.server import Server as Nsqadmin

    options = nsqadmin_options.parse([f"--http-address={address}", f"--lookupd-http-address={lookupd_http}"])
    nsqadmin_options.validate(options)
    admin = Nsqadmin(options)
    running.append(("nsqadmin", admin.stop))
    await admin.start()
    return _reachable(address, admin.http_port)


def _tell(addresses: dict[str, str], as_json: bool) -> None:
    """Print where everything listens. A closed stdout is no reason to stop."""
    try:
        if as_json:
            print_json({**addresses, "pid": int(addresses["pid"])})
            return
        nsqd_flag = f" --nsqd-tcp {addresses['nsqd_tcp']}"
        http_flag = f" --nsqd-http {addresses['nsqd_http']}"
        usual = addresses["nsqd_http"] == "127.0.0.1:4151" and addresses["nsqd_tcp"] == "127.0.0.1:4150"
        print(
            _TEXT.format(
                **addresses,
                admin_page=f"http://{addresses['admin_http']}/"
                if addresses["admin_http"]
                else "not installed",
                nsqd_flag="" if usual else nsqd_flag,
                http_flag="" if usual else http_flag,
            ),
            flush=True,
        )
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def _reachable(address: str, port: int) -> str:
    """An address that a client on this machine can connect to, for one that is listened on."""
    if port == -1:
        return address  # a unix socket
    host, _ = split_address(address)
    return join_address("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, port)


def _broadcast(addresses: Iterable[str]) -> str:
    """This machine's name if anything is open to others, otherwise what they all listen on: 127.0.0.1."""
    for address in addresses:
        try:
            host, _ = split_address(address)
        except ValueError:
            continue  # listening there will say why it cannot be
        if host in ("", "0.0.0.0", "::"):
            return os.uname().nodename
        if host not in ("127.0.0.1", "localhost", "::1"):
            return host
    return "127.0.0.1"


def _explain(error: StartError, flags: dict[str, str]) -> str:
    """The reason why a daemon cannot start; where an address is the reason, with the flag that gave it."""
    text = str(error)
    for flag, address in flags.items():
        if f"listen ({address}) failed" in text:
            reason = text.rpartition(": ")[2]
            if "in use" in text:
                reason = "the port is in use; stop what runs there, or choose another one"
            return f"{flag} {address}: {reason}"
    if "possibly in use" in text:
        return f"--data-path: {text.partition('data-path: ')[2] or text}"
    return text
