"""The checker of reliability.chaos: histories in, findings out."""

from __future__ import annotations

from reliability.chaos import findings as f
from reliability.chaos import history as h
from reliability.chaos.checker import Checker

T, C = "orders", "billing"


class Story:
    """A history in the making. The clock goes on by 10 ms with each event, and by `wait`."""

    def __init__(self, channel: bool = True) -> None:
        self.checker = Checker(5.0)
        self.now = 1000.0
        self._operation = 0
        self._positions: dict[str, int] = {}
        if channel:
            self.order("create")
        self.connect(90, "a", rdy=0)
        self.connect(91, "b", rdy=0)

    def add(self, *events: h.Event) -> None:
        for event in events:
            self.checker.feed(event)
            self.now += 0.01

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.checker.findings]

    def send(self, *keys: str, delay: float = 0.0, connection: int = 0, batch: str = "") -> int:
        self._operation += 1
        self.add(h.Publishing(self.now, self._operation, T, keys, delay, connection, batch))
        return self._operation

    def publish(self, *keys: str, delay: float = 0.0, connection: int = 0, batch: str = "") -> None:
        operation = self.send(*keys, delay=delay, connection=connection, batch=batch)
        self.add(h.Published(self.now, operation))

    def connect(self, number: int, member: str = "a", rdy: int = 1) -> None:
        channel = C if rdy else ""
        self.add(h.Connected(self.now, number, member, T if rdy else "", channel, rdy))

    def deliver(self, number: int, key: str, message_id: str = "") -> None:
        self.add(h.Delivered(self.now, number, message_id or f"id of {key}", key))

    def finish(self, number: int, key: str) -> None:
        self.add(h.Finishing(self.now, number, f"id of {key}"))

    def requeue(self, number: int, key: str, delay: float) -> None:
        self.add(h.Requeuing(self.now, number, f"id of {key}", delay))

    def ask(self, action: str, channel: str = C) -> int:
        self._operation += 1
        self.add(h.Ordering(self.now, self._operation, action, T, channel))
        return self._operation

    def order(self, action: str, channel: str = C, position: int = -1) -> None:
        operation = self.ask(action, channel)
        self.add(h.Ordered(self.now, operation, position))

    def unanswered(self, action: str, channel: str = C) -> None:
        operation = self.ask(action, channel)
        self.add(h.OrderUnanswered(self.now, operation))

    def look(self, **channels: bool) -> None:
        self._operation += 1
        self.add(h.Looking(self.now, self._operation), h.Looked(self.now, self._operation, {T: channels}))

    def range(self, end: int, epoch: str = "e") -> None:
        self._operation += 1
        self.add(h.RangeAsked(self.now, self._operation, T))
        self.add(h.RangeTold(self.now, self._operation, epoch, end))

    def read(self, *keys: str, start: int = 0, epoch: str = "e", whole: bool = False) -> None:
        entries = [(start + number, f"id of {key}", key) for number, key in enumerate(keys)]
        self.add(h.LogRead(self.now, T, epoch, entries, whole))

    def drained(self) -> None:
        self.add(h.Drained(self.now))


def finished() -> Story:
    """A message whose FIN is on every member that may lead."""
    story = Story()
    story.publish("a", "b")
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.deliver(1, "b")
    story.publish("later", connection=90)
    return story


# ---- loss


def test_what_was_answered_and_never_comes_is_lost() -> None:
    story = Story()
    story.publish("a")
    story.drained()
    assert story.kinds() == [f.LOST]


def test_what_was_answered_and_is_finished_is_not_lost() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.drained()
    assert story.kinds() == []


def test_what_was_delivered_and_not_finished_is_owed() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a")
    assert story.checker.owing() == [(T, C, 1)]
    story.drained()
    assert story.kinds() == [f.LOST]


def test_what_has_no_answer_may_be_lost() -> None:
    story = Story()
    story.add(h.Unanswered(story.now, story.send("a")))
    story.read(whole=True)
    story.drained()
    assert story.kinds() == []


def test_a_channel_gets_what_was_published_after_its_creation_was_answered() -> None:
    story = Story(channel=False)
    story.publish("before")
    creation = story.ask("create")
    publish = story.send("meanwhile")
    story.add(h.Ordered(story.now, creation), h.Published(story.now, publish))
    assert story.checker.owing() == []
    story.publish("after")
    assert story.checker.owing() == [(T, C, 1)]


def test_a_channel_whose_creation_has_no_answer_owes_nothing() -> None:
    story = Story(channel=False)
    story.unanswered("create")
    story.publish("a")
    story.drained()
    assert story.kinds() == []


def test_what_was_answered_must_be_in_the_log_at_the_end() -> None:
    story = Story(channel=False)
    story.publish("a")
    story.read("a")
    assert story.kinds() == []
    story.read(whole=True)
    assert story.kinds() == [f.LOST]


def test_what_was_delivered_must_be_in_the_log_at_the_end_answered_or_not() -> None:
    story = Story()
    story.send("a")
    story.connect(1)
    story.deliver(1, "a")
    story.read(whole=True)
    assert story.kinds() == [f.LOST]


def test_what_was_read_must_be_in_the_log_at_the_end_answered_or_not() -> None:
    story = Story(channel=False)
    story.send("a")
    story.read("a")
    story.read(whole=True)
    assert story.kinds() == [f.LOST]


def test_what_was_refused_may_not_be_stored() -> None:
    story = Story(channel=False)
    story.add(h.Refused(story.now, story.send("a")))
    assert story.kinds() == []
    story.read("a")
    assert story.kinds() == [f.REFUSED_AND_STORED]


def test_what_was_seen_may_not_be_refused() -> None:
    story = Story(channel=False)
    publish = story.send("a")
    story.read("a")
    story.add(h.Refused(story.now, publish))
    assert story.kinds() == [f.REFUSED_AND_STORED]


def test_another_epoch_without_a_deletion_is_a_loss() -> None:
    story = Story(channel=False)
    story.range(3)
    story.range(0, epoch="other")
    assert story.kinds() == [f.LOST]


# ---- meanings


def test_a_position_with_two_messages() -> None:
    story = Story(channel=False)
    story.publish("a")
    story.publish("b")
    story.read("a")
    story.read("b")
    assert story.kinds() == [f.TWO_MEANINGS]


def test_an_id_with_two_messages() -> None:
    story = Story()
    story.publish("a", "b")
    story.connect(1)
    story.deliver(1, "a", "same")
    story.deliver(1, "b", "same")
    assert story.kinds() == [f.TWO_MEANINGS]


def test_a_message_that_was_sent_once_has_one_position() -> None:
    story = Story(channel=False)
    story.publish("a")
    story.read("a")
    story.read("a", start=7)
    assert story.kinds() == [f.STORED_TWICE]


def test_a_staged_batch_that_is_published_again_is_stored_once() -> None:
    story = Story()
    story.send("a", batch="1")
    story.publish("a", batch="1")
    story.connect(1)
    story.deliver(1, "a", "one")
    assert story.kinds() == []
    story.deliver(1, "a", "other")
    assert story.kinds() == [f.STORED_TWICE]


def test_a_message_that_nobody_published() -> None:
    story = Story(channel=False)
    story.read("a")
    assert story.kinds() == [f.STRANGE]


def test_the_end_of_a_log_falls() -> None:
    story = Story(channel=False)
    story.range(5)
    story.range(5)
    story.range(4)
    assert story.kinds() == [f.FELL]


def test_an_older_question_may_have_an_older_answer() -> None:
    story = Story(channel=False)
    story.add(h.RangeAsked(story.now, 900, T))
    story.range(5)
    story.add(h.RangeTold(story.now, 900, "e", 4))
    assert story.kinds() == []


# ---- FIN and REQ


def test_a_certain_fin_that_is_undone() -> None:
    story = finished()
    story.connect(2, "b")
    story.deliver(2, "a")
    assert story.kinds() == [f.CAME_BACK]


def test_a_fin_may_be_undone_before_another_delivery_shows_that_it_was_taken() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.publish("later", connection=90)
    story.connect(2, "b")
    story.deliver(2, "a")
    assert story.kinds() == []


def test_a_fin_may_be_undone_while_no_later_publish_is_answered() -> None:
    story = Story()
    story.publish("a", "b")
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    publish = story.send("meanwhile", connection=90)
    story.deliver(1, "b")
    story.add(h.Published(story.now, publish))
    story.connect(2, "b")
    story.deliver(2, "a")
    assert story.kinds() == []


def test_an_answer_of_another_process_makes_no_fin_certain() -> None:
    for number, member in ((91, "b"), (92, "a")):
        story = Story()
        story.publish("a", "b")
        story.connect(1)
        story.deliver(1, "a")
        story.finish(1, "a")
        story.deliver(1, "b")
        if number == 92:  # a connection of the same member, and perhaps not of the same process
            story.connect(92, member, rdy=0)
        story.publish("later", connection=number)
        story.connect(2, "b")
        story.deliver(2, "a")
        assert story.kinds() == []


def test_a_connection_from_before_a_failover_may_deliver_what_is_finished() -> None:
    story = Story()
    story.connect(1, "b")
    story.publish("a", "b")
    story.connect(2)
    story.deliver(2, "a")
    story.finish(2, "a")
    story.deliver(2, "b")
    story.publish("later", connection=90)
    story.deliver(1, "a")
    assert story.kinds() == []


def test_a_certain_requeue_is_waited_for() -> None:
    story = Story()
    story.publish("a", "b")
    story.connect(1)
    story.deliver(1, "a")
    story.requeue(1, "a", 2.0)
    story.deliver(1, "b")
    story.publish("later", connection=90)
    story.connect(2, "b")
    story.deliver(2, "a")
    assert story.kinds() == [f.EARLY]
    story.wait(2.0)
    story.deliver(2, "a")
    assert story.kinds() == [f.EARLY]


def test_a_requeue_that_is_not_certain_may_be_forgotten() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a")
    story.requeue(1, "a", 2.0)
    story.connect(2, "b")
    story.deliver(2, "a")
    assert story.kinds() == []


def test_a_deferred_message_comes_too_early() -> None:
    story = Story()
    story.publish("a", delay=1.0)
    story.connect(1)
    story.deliver(1, "a")
    assert story.kinds() == [f.EARLY]


def test_a_deferred_message_comes_in_time() -> None:
    story = Story()
    story.publish("a", delay=1.0)
    story.connect(1)
    story.wait(1.0)
    story.deliver(1, "a")
    assert story.kinds() == []


# ---- orders


def test_a_channel_that_was_created_is_gone() -> None:
    story = Story()
    story.look(**{C: False})
    assert story.kinds() == []
    story.look()
    assert story.kinds() == [f.UNDONE]


def test_a_channel_that_was_deleted_is_there() -> None:
    story = Story()
    story.order("delete")
    story.look()
    assert story.kinds() == []
    story.look(**{C: False})
    assert story.kinds() == [f.UNDONE]


def test_a_channel_whose_deletion_has_no_answer_may_be_there_or_not() -> None:
    story = Story()
    story.publish("a")
    story.unanswered("delete")
    story.look()
    story.look(**{C: False})
    story.drained()
    assert story.kinds() == []


def test_a_pause_that_was_answered_is_undone() -> None:
    story = Story()
    story.order("pause")
    story.look(**{C: True})
    assert story.kinds() == []
    story.look(**{C: False})
    assert story.kinds() == [f.UNDONE]


def test_a_look_that_began_before_an_order_says_nothing_of_it() -> None:
    story = Story()
    story.add(h.Looking(story.now, 900))
    story.order("pause")
    story.add(h.Looked(story.now, 900, {T: {C: False}}))
    assert story.kinds() == []


def test_a_paused_channel_delivers_to_a_later_connection() -> None:
    story = Story()
    story.publish("a", "b")
    story.connect(1)
    story.order("pause")
    story.deliver(1, "a")  # it was on its way
    assert story.kinds() == []
    story.connect(2, "b")
    story.deliver(2, "b")
    assert story.kinds() == [f.UNDONE]


def test_an_unpause_without_an_answer_may_have_happened() -> None:
    story = Story()
    story.publish("a")
    story.order("pause")
    story.connect(1)
    story.unanswered("unpause")
    story.deliver(1, "a")
    story.look(**{C: False})
    story.look(**{C: True})
    assert story.kinds() == []


def test_a_seek_back_brings_messages_again() -> None:
    story = finished()
    story.read("a", "b", "later")
    story.order("seek", position=0)
    assert story.checker.owing() == [(T, C, 3)]
    story.connect(2, "b")
    for key in ("a", "b", "later"):
        story.deliver(2, key)
        story.finish(2, key)
    story.drained()
    assert story.kinds() == []


def test_a_seek_back_that_is_undone() -> None:
    story = finished()
    story.read("a", "b", "later")
    story.order("seek", position=1)
    story.connect(2, "b")
    story.deliver(2, "later")
    story.finish(2, "later")
    story.drained()
    assert story.kinds() == [f.UNDONE]


def test_a_seek_forward_that_is_undone() -> None:
    story = Story()
    story.publish("a", "b")
    story.read("a", "b")
    story.order("seek", position=2)
    story.connect(1)
    story.deliver(1, "a")
    story.drained()
    assert story.kinds() == [f.UNDONE]


def test_after_a_seek_without_an_answer_nothing_is_owed() -> None:
    story = Story()
    story.publish("a")
    story.unanswered("seek")
    story.publish("b")
    story.drained()
    assert story.kinds() == []


def test_a_topic_that_was_deleted_has_its_old_log() -> None:
    story = Story()
    story.range(3)
    story.order("delete", channel="")
    story.range(0, epoch="new")
    assert story.kinds() == []
    story.range(3)
    assert story.kinds() == [f.UNDONE]


def test_a_log_that_was_new_before_the_deletion_was_answered() -> None:
    story = Story()
    story.range(3)
    deletion = story.ask("delete", channel="")
    story.range(0, epoch="new")
    story.add(h.Ordered(story.now, deletion))
    story.range(0, epoch="new")
    assert story.kinds() == []


# ---- the group


def test_service_is_back_too_late() -> None:
    story = Story(channel=False)
    publish = story.send("a")
    story.add(h.PrimaryLost(story.now, "SIGKILL", True))
    story.add(h.Published(story.now, publish))  # by the primary that was lost
    assert story.checker.gaps == []
    story.wait(6.0)
    story.publish("b")
    assert story.kinds() == [f.SLOW]


def test_service_is_back_in_time() -> None:
    story = Story(channel=False)
    story.add(h.PrimaryLost(story.now, "SIGKILL", True))
    story.wait(2.0)
    story.publish("a")
    story.wait(20.0)
    story.publish("b")
    assert story.kinds() == []
    ((lost, gap),) = story.checker.gaps
    assert (lost.fault, round(gap, 2)) == ("SIGKILL", 2.02)


def test_more_than_the_loss_of_the_primary_may_take_longer() -> None:
    story = Story(channel=False)
    story.add(h.PrimaryLost(story.now, "SIGKILL of all", False))
    story.wait(60.0)
    story.publish("a")
    assert story.kinds() == []


def test_what_the_series_sees_is_a_finding() -> None:
    story = Story(channel=False)
    story.add(h.Round(story.now, 3), h.Stuck(story.now, "it hangs"))
    story.add(h.Diverged(story.now, "a file differs"), h.Strange(story.now, "what is this"))
    assert [str(each) for each in story.checker.findings] == [
        "round 3: stuck: it hangs",
        "round 3: directories differ: a file differs",
        "round 3: strange: what is this",
    ]
