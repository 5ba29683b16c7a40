"""Short runs of `python -m reliability.network`: bad clients on this machine, one partition between hosts."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from reliability.network import loopback, partitions
from reliability.network.hosts import Network, why_not
from reliability.network.loopback import SMALL, Size
from reliability.network.worker import body_of, number_of
from reliability.outcome import Outcome


def passed(outcome: Outcome) -> None:
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.faults == [], outcome.lines()
    assert outcome.figures["nsquark"].endswith(", 0 lost")


@pytest.mark.parametrize(
    "trial", [loopback.slow_readers, loopback.half_open, loopback.resets, loopback.churn]
)
def test_bad_clients_disturb_no_others(trial: Callable[[Size], Outcome]) -> None:
    passed(trial(SMALL))


def test_publishers_go_on_after_a_partition_and_nothing_is_lost() -> None:
    passed(partitions.publishers_cut_off(SMALL))


def test_the_network_between_hosts_can_be_cut() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with Network("here", "there") as network:
        here, there = network["here"], network["there"]

        def listen() -> socket.socket:
            return socket.create_server((there.address, 0))

        def connect(timeout: float = 20.0) -> str:
            try:
                with socket.create_connection(server.getsockname(), timeout=timeout):
                    return "connected"
            except TimeoutError:
                return "nothing"

        with there.within(listen) as server:
            assert here.within(connect) == "connected"
            network.isolate("there")
            assert here.within(lambda: connect(0.5)) == "nothing"
            network.isolate("there", False)
            assert here.within(connect) == "connected"


def test_a_body_that_is_not_whole_is_noticed() -> None:
    assert number_of(body_of(12)) == 12
    with pytest.raises(ValueError, match="not whole"):
        number_of(body_of(12)[:-1])
