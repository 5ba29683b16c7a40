"""Hosts in namespaces: latency and loss, and partitions of publishers, consumers and nsqlookupd.

nsqd's host: nsqd, and a publisher that nothing must disturb
the directory's: nsqlookupd
the clients': publishers on one, consumers on another
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from reliability.outcome import Outcome
from reliability.untouched import Untouched
from tests.daemon import Daemon, Nsqd, Nsqlookupd

from .hosts import Host, Network, why_not
from .loopback import Size
from .traffic import Traffic, wait_for

INACTIVE = 20.0  # seconds after which nsqlookupd hides an nsqd; nsqd pings every 15


class Cluster(NamedTuple):
    network: Network
    nsqd: Nsqd
    nsqlookupd: Nsqlookupd
    traffic: Traffic

    def listed(self) -> bool:
        """Whether nsqlookupd names the nsqd to consumers."""
        host = self.network["directory"]
        url = f"http://{self.nsqlookupd.http_address}/lookup?topic=of_nsquark"
        return bool(host.get(url)["producers"])


def _on(host: Host, daemon: Daemon, tcp: int) -> Daemon:
    daemon.program = [*host.prefix, *daemon.program]
    daemon.tcp_address, daemon.http_address = f"{host.address}:{tcp}", f"{host.address}:{tcp + 1}"
    return daemon.start()


@contextmanager
def cluster(outcome: Outcome, size: Size) -> Iterator[Cluster]:
    """Daemons and traffic on hosts. At the end nothing is lost, and one publisher is undisturbed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Network("nsqd", "directory", "publishers", "consumers") as net,
    ):
        nsqlookupd = Nsqlookupd(
            f"--broadcast-address={net['directory'].address}", f"--inactive-producer-timeout={INACTIVE}s"
        )
        nsqd = Nsqd(
            Path(folder) / "data",
            f"--broadcast-address={net['nsqd'].address}",
            f"--lookupd-tcp-address={net['directory'].address}:4160",
            "--drain-timeout=0s",
            "--msg-timeout=3s",
        )
        with nsqlookupd, nsqd:
            _on(net["directory"], nsqlookupd, 4160)
            _on(net["nsqd"], nsqd, 4150)
            with Traffic(
                nsqd.tcp_address,
                nsqlookupd.http_address,
                net["publishers"].prefix,
                net["consumers"].prefix,
            ) as traffic:
                traffic.flows(1, 10)
                with Untouched(nsqd.tcp_address, net["nsqd"].prefix) as untouched:
                    yield Cluster(net, nsqd, nsqlookupd, traffic)
                outcome.figures["untouched p99"] = str(untouched.latency)
                outcome.demand(untouched.latency.p99 <= size.p99, "an untouched publisher was disturbed")
                traffic.settle(outcome)
                outcome.figures["packets"] = f"{net.passed} passed, {net.dropped} dropped"
            for daemon in (nsqd, nsqlookupd):
                outcome.demand(
                    not [line for line in daemon.lines if "Traceback" in line],
                    f"{daemon.name} logged a traceback",
                )


Trial = Callable[[Outcome, Size], None]


def _tried(name: str, trial: Trial) -> Callable[[Size], Outcome]:
    def run(size: Size) -> Outcome:
        outcome = Outcome(name, skipped=why_not())
        if not outcome.skipped:
            trial(outcome, size)
        return outcome

    return run


def _latency_and_loss(outcome: Outcome, size: Size) -> None:
    with cluster(outcome, size) as here:
        for host in ("publishers", "consumers", "directory"):
            link = here.network.link("nsqd", host)
            link.delay, link.loss = 0.02, 0.03
        time.sleep(size.seconds)
        here.traffic.flows(1, 10)
        for host in ("publishers", "consumers", "directory"):
            here.network.link("nsqd", host).loss = 0.0
    outcome.figures["network"] = "20 ms and 3 % loss each way"


def _cut_off(host: str, worker: int) -> Trial:
    def trial(outcome: Outcome, size: Size) -> None:
        with cluster(outcome, size) as here:
            here.network.isolate(host)
            time.sleep(size.outage)
            here.network.isolate(host, False)
            took = here.traffic.flows(worker, 10)
            outcome.figures["outage"] = f"{size.outage:g} s"
            for library, seconds in took.items():
                outcome.figures[f"{library} goes on after"] = f"{seconds:.1f} s"

    return trial


def _short_cuts(outcome: Outcome, size: Size) -> None:
    """Again and again for a moment: connections live on or are made anew, and nothing is lost."""
    with cluster(outcome, size) as here:
        end = time.monotonic() + size.seconds
        cuts = 0
        while time.monotonic() < end:
            for host in ("publishers", "consumers"):
                here.network.isolate(host)
                time.sleep(0.3)
                here.network.isolate(host, False)
                time.sleep(0.3)
                cuts += 1
        here.traffic.flows(1, 10)
        outcome.figures["cuts"] = str(cuts)


def _directory(outcome: Outcome, size: Size) -> None:
    with cluster(outcome, size) as here:
        wait_for(here.listed, "nsqlookupd lists the nsqd")
        here.network.isolate("directory")
        gone = wait_for(lambda: not here.listed(), "nsqlookupd drops the nsqd")
        here.traffic.flows(1, 10)  # who is connected does not need nsqlookupd
        here.network.isolate("directory", False)
        back = wait_for(here.listed, "nsqlookupd takes the nsqd back")
        outcome.figures["dropped after"] = f"{gone:.0f} s (--inactive-producer-timeout={INACTIVE:g}s)"
        outcome.figures["taken back after"] = f"{back:.1f} s"
        outcome.demand(gone <= INACTIVE + 5, "nsqlookupd lists an nsqd that is gone")


latency_and_loss = _tried("latency and loss", _latency_and_loss)
publishers_cut_off = _tried("publishers cut off", _cut_off("publishers", 0))
consumers_cut_off = _tried("consumers cut off", _cut_off("consumers", 1))
short_cuts = _tried("short cuts", _short_cuts)
directory_cut_off = _tried("nsqlookupd cut off", _directory)
