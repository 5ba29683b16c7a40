"""RDY sharing without sockets, and with a clock that the test sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsquark.client.consumer.rdy import SETTLE, RdyShare, RdySharing


class Consumer:
    """A sharing, what it sent, and what may be in flight for it: nsqd's side of the bargain."""

    def __init__(self, max_in_flight: int, shares: int = 0, max_rdy: int = 2500) -> None:
        self.now = 100.0
        self.sent: list[tuple[int, int]] = []
        self.shares: list[RdyShare] = []
        self.told: dict[RdyShare, int] = {}
        self.sharing = RdySharing(max_in_flight, self._send)
        for _ in range(shares):
            self.join(max_rdy)

    def _send(self, share: RdyShare, rdy: int) -> None:
        self.sent.append((self.shares.index(share), rdy))
        lowered = self.told.get(share, 0) > rdy
        self.told[share] = rdy
        assert 0 <= rdy <= share.max_rdy
        assert lowered or sum(each.rdy for each in self.sharing.shares) <= self.sharing.max_in_flight

    def join(self, max_rdy: int = 2500) -> RdyShare:
        share = RdyShare(max_rdy, self.now)
        self.shares.append(share)
        self.sharing.add(share, self.now)
        return share

    def settle(self) -> None:
        """Let lowered RDYs take effect."""
        self.wait(SETTLE + 0.001)
        self.sharing.distribute(self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def tick(self, seconds: float = 5.0) -> None:
        self.wait(seconds)
        self.sharing.tick(self.now)

    def message(self, number: int) -> None:
        self.shares[number].in_flight += 1
        self.sharing.message(self.shares[number], self.now)

    def answer(self, number: int) -> None:
        self.shares[number].in_flight -= 1
        if self.sharing.waiting:
            self.sharing.distribute(self.now)

    @property
    def rdy(self) -> list[int]:
        return [share.rdy for share in self.shares]

    def take(self) -> list[tuple[int, int]]:
        sent, self.sent = self.sent, []
        return sent


def test_the_first_connection_gets_everything_and_the_second_half() -> None:
    consumer = Consumer(10, 1)
    assert consumer.take() == [(0, 10)]
    consumer.join()
    assert consumer.take() == [(0, 5)]  # what was sent before nsqd hears of it may still be on its way
    consumer.settle()
    assert consumer.take() == [(1, 5)]


def test_the_remainder_is_spread() -> None:
    consumer = Consumer(10, 3)
    consumer.settle()
    assert sorted(consumer.rdy) == [3, 3, 4]


def test_nothing_is_given_that_is_still_in_flight_elsewhere() -> None:
    consumer = Consumer(4, 1)
    for _ in range(4):
        consumer.message(0)
    consumer.join()
    consumer.settle()
    assert consumer.rdy == [2, 0]
    consumer.answer(0)
    assert consumer.rdy == [2, 1]
    consumer.answer(0)
    assert consumer.rdy == [2, 2]
    assert not consumer.sharing.waiting


def test_those_without_come_first_when_room_is_found() -> None:
    consumer = Consumer(6, 1)
    for _ in range(6):
        consumer.message(0)
    consumer.join()
    consumer.join()
    consumer.settle()
    consumer.take()
    for _ in range(4):
        consumer.answer(0)
    assert consumer.take() == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_rdy_stays_below_what_the_server_takes_and_the_rest_goes_to_others() -> None:
    consumer = Consumer(100)
    consumer.join(max_rdy=10)
    consumer.join(max_rdy=2500)
    consumer.settle()
    assert consumer.rdy == [10, 90]


def test_a_decrease_is_always_sent() -> None:
    consumer = Consumer(10, 2)
    consumer.settle()
    for _ in range(5):
        consumer.message(0)
        consumer.message(1)
    consumer.sharing.change(2, consumer.now)
    assert consumer.rdy == [1, 1]


def test_an_equal_rdy_is_not_sent_again() -> None:
    consumer = Consumer(10, 2)
    consumer.settle()
    consumer.take()
    consumer.sharing.distribute(consumer.now)
    consumer.sharing.change(10, consumer.now)
    assert consumer.take() == []


def test_pause_and_resume() -> None:
    consumer = Consumer(5, 1)
    consumer.sharing.change(0, consumer.now)
    consumer.sharing.change(5, consumer.now)
    assert consumer.take() == [(0, 5), (0, 0), (0, 5)]


def test_what_a_lost_connection_had_goes_to_the_others() -> None:
    consumer = Consumer(10, 2)
    consumer.settle()
    consumer.sharing.remove(consumer.shares[0], consumer.now)
    assert consumer.rdy == [5, 10]


def test_one_that_is_left_keeps_its_messages_counted() -> None:
    consumer = Consumer(4, 2)
    consumer.settle()
    consumer.message(0)
    consumer.message(0)
    consumer.sharing.retire(consumer.shares[0], consumer.now)
    consumer.settle()
    assert consumer.rdy == [0, 2]
    consumer.answer(0)
    assert consumer.rdy == [0, 3]


# ---- lending


def test_an_idle_connection_lends_its_share_and_takes_it_back_with_its_first_message() -> None:
    consumer = Consumer(20, 4)
    consumer.settle()
    assert consumer.rdy == [5, 5, 5, 5]
    for _ in range(3):
        consumer.message(0)
        consumer.answer(0)
        consumer.tick()
    consumer.settle()
    assert consumer.rdy == [17, 1, 1, 1]
    consumer.message(2)
    consumer.settle()
    assert consumer.rdy == [9, 1, 9, 1]


def test_when_all_are_idle_nobody_lends() -> None:
    consumer = Consumer(20, 4)
    for _ in range(4):
        consumer.tick()
    assert consumer.rdy == [5, 5, 5, 5]


# ---- more connections than messages


def test_with_more_connections_than_messages_some_wait_their_turn() -> None:
    consumer = Consumer(2, 5)
    consumer.settle()
    assert sorted(consumer.rdy) == [0, 0, 0, 1, 1]


def test_three_silent_nsqds_take_turns_as_nsq_lets_them() -> None:
    consumer = Consumer(1, 3)
    assert consumer.take() == [(0, 1)]
    consumer.tick()
    consumer.tick()
    assert consumer.take() == []  # at 10 s it is not idle for longer than 10 s
    order = []
    for _ in range(6):
        consumer.tick()
        consumer.settle()
        order += [number for number, rdy in consumer.take() if rdy]
    assert order == [1, 2, 0, 1, 2, 0]


def test_a_busy_nsqd_gives_up_its_turn_after_a_while() -> None:
    consumer = Consumer(1, 2)
    for _ in range(6):
        consumer.message(0)
        consumer.answer(0)
        consumer.tick()
    assert consumer.rdy == [1, 0]
    consumer.message(0)
    consumer.answer(0)
    consumer.tick()
    consumer.settle()
    assert consumer.rdy == [0, 1]


def test_a_turn_is_over_when_its_message_is_answered() -> None:
    consumer = Consumer(1, 2)
    consumer.message(0)
    consumer.tick(11.0)
    consumer.settle()
    assert consumer.rdy == [0, 0]  # its message is in flight: one is all there may be
    consumer.answer(0)
    assert consumer.rdy == [0, 1]


def test_the_token_of_a_lost_connection_moves_on() -> None:
    consumer = Consumer(1, 2)
    consumer.sharing.remove(consumer.shares[0], consumer.now)
    assert consumer.rdy == [1, 1]  # the first is gone, whatever it was last told


# ---- backoff


def test_backing_off_is_rdy_0_then_1_for_one_then_all() -> None:
    consumer = Consumer(10, 2)
    consumer.settle()
    consumer.take()
    consumer.sharing.pause(consumer.now)
    assert consumer.take() == [(0, 0), (1, 0)]
    consumer.join()
    consumer.tick()
    assert consumer.take() == []
    consumer.sharing.test(consumer.now)
    assert [rdy for _, rdy in consumer.take()] == [1]
    consumer.sharing.resume(consumer.now)
    consumer.settle()
    assert sorted(consumer.rdy) == [3, 3, 4]


def test_the_test_moves_on_when_its_connection_is_silent_or_lost() -> None:
    consumer = Consumer(10, 2)
    consumer.sharing.pause(consumer.now)
    consumer.settle()
    consumer.sharing.test(consumer.now)
    holder = consumer.rdy.index(1)
    consumer.tick(11.0)
    consumer.settle()
    assert consumer.rdy == [int(number != holder) for number in range(2)]
    consumer.sharing.remove(consumer.shares[1 - holder], consumer.now)
    assert consumer.shares[holder].rdy == 1


def test_a_connection_that_joins_while_nobody_has_the_test_gets_it() -> None:
    consumer = Consumer(5, 1)
    consumer.sharing.pause(consumer.now)
    consumer.sharing.remove(consumer.shares[0], consumer.now)
    consumer.sharing.test(consumer.now)
    consumer.take()
    consumer.join()
    assert consumer.take() == [(1, 1)]


def test_starved_is_having_about_all_that_may_come() -> None:
    consumer = Consumer(10, 1)
    assert not consumer.sharing.is_starved()
    for _ in range(7):
        consumer.message(0)
    assert not consumer.sharing.is_starved()
    consumer.message(0)
    assert consumer.sharing.is_starved()


# ---- whatever happens


class Nsqds:
    """Several nsqds with endless messages. RDY reaches them late, and so does what they send us."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.ceiling: dict[RdyShare, int] = {}
        self.under_way: dict[RdyShare, int] = {}  # sent, not yet received

    def hear(self, share: RdyShare) -> None:
        """The nsqd gets the last RDY and fills it up."""
        self.ceiling[share] = share.rdy
        self.deliver(share)

    def deliver(self, share: RdyShare) -> None:
        in_flight = share.in_flight + self.under_way.get(share, 0)
        self.under_way[share] = self.under_way.get(share, 0) + max(0, self.ceiling.get(share, 0) - in_flight)

    def receive(self, share: RdyShare) -> None:
        for _ in range(self.under_way.pop(share, 0)):
            self.consumer.message(self.consumer.shares.index(share))


@given(st.data())
def test_never_is_more_in_flight_than_allowed_and_nobody_starves(data: st.DataObject) -> None:
    consumer = Consumer(data.draw(st.integers(1, 12)))
    nsqds = Nsqds(consumer)
    for _ in range(data.draw(st.integers(1, 60))):
        shares = consumer.sharing.shares
        step = data.draw(st.sampled_from(["join", "leave", "hear", "answer", "answer", "tick", "settle"]))
        if step == "join" and len(shares) < 6:
            consumer.join(data.draw(st.sampled_from([1, 3, 2500])))
        elif not shares:
            continue
        elif step == "tick":
            everybody_hears(nsqds)
            consumer.tick(data.draw(st.sampled_from([0.0, 5.0, 31.0])))
        elif step == "settle":
            everybody_hears(nsqds)
            consumer.settle()
        else:
            share = data.draw(st.sampled_from(shares))
            if step == "leave":
                share.in_flight = 0
                nsqds.under_way.pop(share, None)
                consumer.sharing.remove(share, consumer.now)
            elif step == "hear":
                nsqds.hear(share)
            elif share.in_flight:
                consumer.answer(consumer.shares.index(share))
                nsqds.deliver(share)
        in_flight = sum(share.in_flight + nsqds.under_way.get(share, 0) for share in consumer.sharing.shares)
        assert in_flight <= consumer.sharing.max_in_flight
    # when everything is answered, everything is shared out
    for share in consumer.sharing.shares:
        share.in_flight = 0
    consumer.settle()
    room = sum(share.max_rdy for share in consumer.sharing.shares)
    assert sum(share.rdy for share in consumer.sharing.shares) == min(room, consumer.sharing.max_in_flight)
    if consumer.sharing.max_in_flight >= len(consumer.sharing.shares):
        assert all(share.rdy for share in consumer.sharing.shares)


def everybody_hears(nsqds: Nsqds) -> None:
    """Within the time that `settle` allows, every nsqd has heard, and we have what it had sent."""
    for share in nsqds.consumer.sharing.shares:
        nsqds.receive(share)
        nsqds.ceiling[share] = share.rdy
