"""The checker of reliability.crashes: histories in, findings out."""

from __future__ import annotations

from reliability.crashes import history as h
from reliability.crashes.checker import check
from reliability.crashes.checking import findings as f

T, C = "orders", "billing"


class Story:
    """A history in the making. The clock goes on by 10 ms with each event, and by `wait`."""

    def __init__(self, channel: bool = True) -> None:
        self.events: list[h.Event] = []
        self._now = 1000.0
        self._operation = 0
        self.add(h.Started(self.now, 1))
        if channel:
            self.order("create", channel=C)

    @property
    def now(self) -> float:
        return self._now

    def add(self, *events: h.Event) -> None:
        for event in events:
            self.events.append(event)
            self._now += 0.01

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def kinds(self) -> list[str]:
        return [finding.kind for finding in check(self.events)]

    def send(
        self, *keys: str, delay: float = 0.0, topic: str = T, batch: str = "", repeats: bool = False
    ) -> int:
        self._operation += 1
        self.add(h.Publishing(self.now, self._operation, topic, keys, delay, batch, repeats))
        return self._operation

    def publish(
        self, *keys: str, delay: float = 0.0, topic: str = T, batch: str = "", repeats: bool = False
    ) -> None:
        self.add(
            h.Published(self.now, self.send(*keys, delay=delay, topic=topic, batch=batch, repeats=repeats))
        )

    def connect(self, number: int, channel: str = C, topic: str = T, timeout: float = 60.0) -> None:
        self.add(h.Subscribing(self.now, number, topic, channel, timeout), h.Subscribed(self.now, number))

    def deliver(self, number: int, key: str, attempts: int = 1, message_id: str = "") -> None:
        self.add(h.Delivered(self.now, number, message_id or f"id of {key}", 5, attempts, key))

    def finish(self, number: int, key: str) -> None:
        self.add(h.Finishing(self.now, number, f"id of {key}"))

    def requeue(self, number: int, key: str, delay: float = 0.0) -> None:
        self.add(h.Requeuing(self.now, number, f"id of {key}", delay))

    def touch(self, number: int, key: str) -> None:
        self.add(h.Touching(self.now, number, f"id of {key}"))

    def fail(self, number: int, key: str, command: str = "FIN") -> None:
        self.add(h.AnswerFailed(self.now, number, f"id of {key}", command))

    def round_trips(self, number: int, count: int = 2) -> None:
        for _ in range(count):
            self.add(h.Asking(self.now, number), h.Answered(self.now, number))

    def order(self, action: str, topic: str = T, channel: str = "", position: int = -1, to: int = -1) -> None:
        self.ask(action, topic, channel, position)
        self.add(h.Ordered(self.now, self._operation, to))

    def ask(self, action: str, topic: str = T, channel: str = "", position: int = -1) -> None:
        self._operation += 1
        self.add(h.Ordering(self.now, self._operation, action, topic, channel, position))

    def close(self, number: int) -> None:
        self.add(h.Disconnected(self.now, number))

    def kill(self) -> None:
        self.add(h.Killed(self.now), h.Started(self.now, 2))

    def stop(self) -> None:
        self.add(h.Stopped(self.now), h.Started(self.now, 2))

    def look(self, *keys: str, start: int = 0, epoch: str = "e", ids: dict[str, str] | None = None) -> None:
        named = ids or {}
        entries = [
            (start + number, named.get(key, f"id of {key}"), key) for number, key in enumerate(keys) if key
        ]
        self.add(h.LogRead(self.now, T, epoch, 0, 0, start + len(keys), start, entries))

    def drained(self) -> None:
        self.add(h.Drained(self.now))


def consumed(finished: bool = True) -> Story:
    """A message that was published and delivered, and whose FIN is sure to be kept."""
    story = Story()
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a")
    if finished:
        story.finish(1, "a")
        story.round_trips(1)
    return story


# ---- loss


def test_what_was_answered_and_never_comes_is_lost() -> None:
    story = Story()
    story.publish("a")
    story.kill()
    story.drained()
    assert story.kinds() == [f.LOST]


def test_what_was_not_answered_may_be_missing() -> None:
    story = Story()
    story.send("a")
    story.kill()
    story.drained()
    assert story.kinds() == []


def test_what_was_answered_and_is_not_in_the_log_is_lost() -> None:
    story = Story()
    story.publish("a", "b")
    story.kill()
    story.look("a")
    assert story.kinds() == [f.LOST]


def test_what_the_log_has_let_go_may_be_missing_in_it() -> None:
    story = Story()
    story.publish("a", "b")
    story.kill()
    story.look("c", start=7)
    assert f.LOST not in story.kinds()


def test_an_mpub_is_there_as_a_whole() -> None:
    story = Story()
    story.send("a", "b")
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.kill()
    story.drained()
    assert story.kinds() == [f.LOST]


def test_a_finished_message_is_not_owed() -> None:
    story = consumed()
    story.kill()
    story.drained()
    assert story.kinds() == []


def test_a_message_whose_fin_failed_is_owed() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=0.01)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.wait(0.1)
    story.fail(1, "a")
    story.drained()
    assert story.kinds() == [f.LOST]


def test_every_channel_is_owed_its_own() -> None:
    story = Story()
    story.order("create", channel="shipping")
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.drained()
    assert story.kinds() == [f.LOST]


def test_a_channel_that_may_be_new_is_owed_nothing() -> None:
    story = Story(channel=False)
    story.publish("a")
    story.connect(1)
    story.drained()
    assert story.kinds() == []


def test_the_backlog_is_promised_to_the_first_channel() -> None:
    story = Story(channel=False)
    story.add(h.Promised(story.now, T, "late"))
    story.publish("a")
    story.drained()
    assert story.kinds() == [f.LOST]


def test_a_dead_letter_pays_for_the_message_that_died() -> None:
    story = consumed(finished=False)
    story.requeue(1, "a")
    story.connect(2, "redeliver", f"{T}.{C}.dead")
    story.add(h.Delivered(story.now, 2, "id of the letter", 6, 1, "a", (T, C)))
    story.add(h.Finishing(story.now, 2, "id of the letter"))
    story.drained()
    assert story.kinds() == []


def test_a_lost_dead_letter_is_a_lost_message() -> None:
    story = consumed(finished=False)
    story.requeue(1, "a")
    story.connect(2, "redeliver", f"{T}.{C}.dead")
    story.drained()
    assert story.kinds() == [f.LOST]


# ---- coming again


def test_a_finished_message_may_not_come_back() -> None:
    story = consumed()
    story.kill()
    story.connect(2)
    story.deliver(2, "a")
    assert story.kinds() == [f.CAME_BACK]


def test_a_fin_of_the_last_turn_may_be_forgotten_in_a_crash() -> None:
    for round_trips in range(2):
        story = consumed(finished=False)
        story.finish(1, "a")
        story.round_trips(1, round_trips)
        story.kill()
        story.connect(2)
        story.deliver(2, "a")
        assert story.kinds() == []


def test_a_message_in_flight_comes_to_nobody_else() -> None:
    story = consumed(finished=False)
    story.connect(2)
    story.deliver(2, "a", 2)
    assert story.kinds() == [f.TWICE]


def test_a_message_whose_fin_is_on_its_way_comes_to_nobody_else() -> None:
    story = consumed(finished=False)
    story.finish(1, "a")
    story.connect(2)
    story.deliver(2, "a", 2)
    assert story.kinds() == [f.TWICE]


def test_a_message_comes_again_after_a_requeue_a_disconnection_a_timeout_a_crash_and_a_stop() -> None:
    def requeue(story: Story) -> None:
        story.requeue(1, "a")

    def close(story: Story) -> None:
        story.close(1)

    for cause in (requeue, close, Story.kill, Story.stop):
        story = consumed(finished=False)
        cause(story)
        story.connect(2)
        story.deliver(2, "a", 1 if cause is Story.kill else 2)
        assert story.kinds() == [], cause
    story = Story()
    story.publish("a")
    story.connect(1, timeout=0.05)
    story.deliver(1, "a")
    story.wait(0.1)
    story.connect(2, timeout=0.05)
    story.deliver(2, "a", 2)
    assert story.kinds() == []


def test_a_crash_gives_back_to_a_paused_topic_what_an_unanswered_unpausing_let_through() -> None:
    story = Story()
    story.connect(1)
    story.order("pause")
    story.publish("a")
    story.ask("unpause")
    story.deliver(1, "a")
    story.kill()
    story.order("empty", channel=C)  # the topic has it, not the channel
    story.order("unpause")
    story.connect(2)
    story.deliver(2, "a")
    assert story.kinds() == []


def test_a_late_fin_may_count_for_a_delivery_that_nobody_saw() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=0.05)
    story.connect(2, timeout=0.05)
    story.deliver(1, "a")
    story.wait(0.2)  # nsqd has sent it to 2, and to 1 again
    story.finish(1, "a")
    story.deliver(2, "a", attempts=2)
    story.finish(2, "a")
    story.fail(2, "a")
    story.kill()
    story.drained()
    assert story.kinds() == []


def test_a_late_requeue_may_count_for_the_next_delivery_though_an_earlier_one_is_kept() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=0.3)
    story.deliver(1, "a")
    story.requeue(1, "a")
    story.round_trips(1, count=1)
    story.deliver(1, "a", attempts=2)
    story.wait(0.5)  # nsqd has sent it again
    story.add(h.Asking(story.now, 1))
    story.requeue(1, "a")
    story.add(h.Answered(story.now, 1))  # the first REQ is kept, the second is on its way
    story.deliver(1, "a", attempts=3)
    story.deliver(1, "a", attempts=4)
    assert story.kinds() == []


def test_a_requeue_that_is_kept_counts_for_no_later_delivery() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=0.3)
    story.deliver(1, "a")
    story.requeue(1, "a")
    story.round_trips(1)
    story.deliver(1, "a", attempts=2)
    story.deliver(1, "a", attempts=3)
    assert story.kinds() == [f.TWICE]


def test_fins_that_all_failed_leave_the_message_owed() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=0.05)
    story.connect(2, timeout=0.05)
    story.deliver(1, "a")
    story.wait(0.2)
    story.finish(1, "a")
    story.fail(1, "a")
    story.deliver(2, "a", attempts=2)
    story.finish(2, "a")
    story.fail(2, "a")
    story.kill()
    story.drained()
    assert story.kinds() == [f.LOST]


def test_touches_of_which_one_failed_do_not_prolong() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=5.0)
    story.connect(2, timeout=5.0)
    story.deliver(1, "a")
    story.wait(4.0)
    story.touch(1, "a")
    story.touch(1, "a")
    story.fail(1, "a", "TOUCH")  # nothing says which of the two
    story.round_trips(1)
    story.wait(4.0)
    story.deliver(2, "a", attempts=2)
    assert story.kinds() == []


def test_a_touched_message_does_not_time_out_early() -> None:
    story = Story()
    story.publish("a")
    story.connect(1, timeout=5.0)
    story.deliver(1, "a")
    story.wait(4.0)
    story.touch(1, "a")
    story.round_trips(1)
    story.wait(4.0)
    story.connect(2, timeout=5.0)
    story.deliver(2, "a", 2)
    assert story.kinds() == [f.TWICE]


def test_a_publish_that_was_repeated_may_be_there_twice() -> None:
    story = Story()
    story.send("a")
    story.kill()
    story.publish("a", repeats=True)
    story.connect(1)
    story.deliver(1, "a", message_id="one")
    story.deliver(1, "a", message_id="two")
    assert story.kinds() == []


def test_a_publish_that_was_not_repeated_is_there_once() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.deliver(1, "a", message_id="one")
    story.requeue(1, "a")
    story.deliver(1, "a", message_id="two")
    assert f.STORED_TWICE in story.kinds()


def test_which_of_two_answers_on_one_connection_failed_is_not_known() -> None:
    for comes in (False, True):
        story = Story()
        story.publish("a")
        story.connect(1, timeout=0.05)
        story.deliver(1, "a", 1)
        story.finish(1, "a")
        story.wait(0.1)
        story.deliver(1, "a", 2)
        story.finish(1, "a")
        story.fail(1, "a")
        story.deliver(1, "a", 3)
        story.round_trips(1)
        story.wait(0.1)
        if comes:
            story.deliver(1, "a", 4)
            story.finish(1, "a")
        story.drained()
        assert story.kinds() == []


# ---- attempts


def test_attempts_grow() -> None:
    story = consumed(finished=False)
    story.requeue(1, "a")
    story.deliver(1, "a", 1)
    assert story.kinds() == [f.ATTEMPTS]


def test_attempts_do_not_grow_by_themselves() -> None:
    story = consumed(finished=False)
    story.requeue(1, "a")
    story.deliver(1, "a", 3)
    assert story.kinds() == [f.ATTEMPTS]


def test_a_crash_forgets_the_attempts_of_a_delivery_but_not_those_of_a_requeue() -> None:
    story = consumed(finished=False)
    story.requeue(1, "a")
    story.round_trips(1)
    story.kill()
    story.connect(2)
    story.deliver(2, "a", 1)
    assert story.kinds() == [f.ATTEMPTS]
    story.events[-1].attempts = 2  # type: ignore[union-attr]
    assert story.kinds() == []


def test_a_stop_keeps_attempts() -> None:
    story = consumed(finished=False)
    story.stop()
    story.connect(2)
    story.deliver(2, "a", 1)
    assert story.kinds() == [f.ATTEMPTS]


# ---- time


def test_a_deferred_message_is_not_delivered_early() -> None:
    for wait, kinds in ((0.1, [f.EARLY]), (0.6, [])):
        story = Story()
        story.publish("a", delay=0.5)
        story.kill()
        story.connect(1)
        story.wait(wait)
        story.deliver(1, "a")
        assert story.kinds() == kinds


def test_a_requeued_message_is_not_delivered_early() -> None:
    for crashes in (False, True):
        for wait, kinds in ((0.1, [f.EARLY]), (0.6, [])):
            story = consumed(finished=False)
            story.requeue(1, "a", 0.5)
            story.round_trips(1)
            if crashes:
                story.kill()
            story.connect(2)
            story.wait(wait)
            story.deliver(2, "a", 2)
            assert story.kinds() == kinds


def test_a_delay_of_the_last_turn_may_be_forgotten_in_a_crash() -> None:
    story = consumed(finished=False)
    story.requeue(1, "a", 0.5)
    story.kill()
    story.connect(2)
    story.deliver(2, "a", 1)
    assert story.kinds() == []


# ---- ids and positions


def test_an_id_means_one_message() -> None:
    story = Story()
    story.publish("a")
    story.publish("b")
    story.connect(1)
    story.deliver(1, "a", message_id="same")
    story.deliver(1, "b", message_id="same")
    assert story.kinds() == [f.TWO_MEANINGS]


def test_a_position_means_one_message_also_in_the_next_log_of_that_name() -> None:
    story = Story()
    story.publish("a")
    story.kill()
    story.look("a")
    story.order("delete")
    story.publish("b")
    story.kill()
    story.look("b", epoch="another")
    assert story.kinds() == [f.TWO_MEANINGS]


def test_a_message_lies_in_the_log_once() -> None:
    story = Story()
    story.publish("a")
    story.kill()
    story.look("a", "a")
    assert story.kinds() == [f.STORED_TWICE]


def test_what_nobody_published_is_strange() -> None:
    story = Story()
    story.connect(1)
    story.deliver(1, "a")
    story.look("b")
    assert story.kinds() == [f.STRANGE, f.STRANGE]


# ---- staged batches


def test_a_staged_batch_is_published_as_a_whole() -> None:
    story = Story()
    story.send("a", "b", batch="app-1")
    story.kill()
    story.connect(1)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.drained()
    assert story.kinds() == [f.LOST]


def test_a_staged_batch_that_was_published_again_is_there_once() -> None:
    story = Story()
    story.send("a", batch="app-1")
    story.kill()
    story.add(h.Published(story.now, story._operation))  # of the replay
    story.connect(1)
    story.deliver(1, "a")
    assert story.kinds() == []
    story.look("a", ids={"a": "another"})
    assert story.kinds() == [f.STORED_TWICE]


def test_the_rest_of_a_staged_batch_may_come_later() -> None:
    story = Story()
    story.send("a", "b", batch="app-1")
    story.kill()
    story.look("a")
    story.look("b", start=1)
    assert story.kinds() == []


# ---- operators


def test_what_was_emptied_does_not_come_back() -> None:
    story = Story()
    story.publish("a")
    story.order("empty", channel=C)
    story.kill()
    story.connect(1)
    story.deliver(1, "a")
    assert story.kinds() == [f.CAME_BACK]


def test_what_was_on_its_way_when_the_channel_was_emptied_may_arrive() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.order("empty", channel=C)
    story.deliver(1, "a")
    story.finish(1, "a")
    story.fail(1, "a")
    story.drained()
    assert story.kinds() == []


def test_an_order_without_an_answer_was_carried_out_or_not() -> None:
    for action in ("empty", "delete", "seek"):
        for comes in (False, True):
            story = Story()
            story.publish("a")
            story.ask(action, channel=C)
            story.kill()
            story.connect(1)
            if comes:
                story.deliver(1, "a")
                story.finish(1, "a")
            story.drained()
            assert story.kinds() == [], action


def test_what_is_published_behind_an_order_is_owed() -> None:
    for action in ("empty", "delete"):
        story = Story()
        story.order(action, channel=C)
        story.order("create", channel=C)
        story.publish("a")
        story.drained()
        assert story.kinds() == [f.LOST], action


def test_a_paused_topic_keeps_what_no_channel_has_yet() -> None:
    story = Story()
    story.order("pause")
    story.publish("a")
    story.order("empty", channel=C)
    story.order("unpause")
    story.connect(1)
    story.deliver(1, "a")
    assert story.kinds() == []


def test_a_seek_has_finished_messages_delivered_again_from_the_first_attempt_on() -> None:
    story = consumed()
    story.kill()
    story.look("a")
    story.order("seek", channel=C, to=0)
    story.drained()
    assert story.kinds() == [f.LOST]
    story.events.pop()
    story.connect(2)
    story.deliver(2, "a", 1)
    assert story.kinds() == []


def test_what_a_seek_or_a_commit_has_passed_does_not_come() -> None:
    for action in ("seek", "commit"):
        story = Story()
        story.publish("a", "b")
        story.kill()
        story.look("a", "b")
        story.order(action, channel=C, position=1, to=1)
        story.kill()
        story.connect(1)
        story.deliver(1, "b")
        story.finish(1, "b")
        assert story.kinds() == []
        story.deliver(1, "a")
        assert story.kinds() == [f.CAME_BACK]


def test_a_commit_between_the_copies_of_a_repeated_publish_finishes_one_of_them() -> None:
    story = Story()
    story.send("a")
    story.kill()
    story.publish("a", repeats=True)
    story.connect(1)
    story.deliver(1, "a", message_id="one")
    story.kill()
    story.look("a", ids={"a": "one"})
    story.look("a", start=1, ids={"a": "two"})
    story.order("commit", channel=C, position=1)
    story.drained()
    assert story.kinds() == []


def test_a_paused_channel_delivers_nothing_also_after_a_crash() -> None:
    story = Story()
    story.publish("a")
    story.connect(1)
    story.order("pause", channel=C)
    story.deliver(1, "a")  # it was on its way
    assert story.kinds() == []
    story.close(1)
    story.kill()
    story.connect(2)
    story.deliver(2, "a")
    assert story.kinds() == [f.PAUSED]


def test_a_paused_topic_passes_nothing_on() -> None:
    story = Story()
    story.connect(1)
    story.order("pause")
    story.publish("a")
    story.deliver(1, "a")
    assert story.kinds() == [f.PAUSED]


def test_an_answer_in_time_is_not_refused() -> None:
    story = consumed(finished=False)
    story.finish(1, "a")
    story.fail(1, "a")
    assert story.kinds() == [f.REFUSED]


def test_a_topic_gets_another_epoch_only_by_a_deletion() -> None:
    story = Story()
    story.look()
    story.kill()
    story.look(epoch="another")
    assert story.kinds() == [f.LOST]


def test_a_finding_tells_the_round_and_the_story_of_the_message() -> None:
    story = consumed()
    story.kill()
    story.connect(2)
    story.deliver(2, "a")
    (finding,) = check(story.events)
    assert str(finding).startswith("round 2: came back: was finished and came back: a on orders/billing; ")
    assert "FIN kept, killed, round 2: attempt 1 to #2" in str(finding)
