"""`nsquark top` in a terminal."""

from __future__ import annotations

import time

import pytest

from nsquark.tools.people.cluster.figures import ChannelFigures, TopicFigures
from nsquark.tools.people.output import console
from nsquark.tools.people.top_view import TopView
from tests.tools.people.command import SOON, failure, output, terminal


def test_it_shows_topics_and_channels_until_q(at: list[str]) -> None:
    output("pub", "orders", "1", "2", "-q", *at)
    output("channel", "create", "orders", "billing", *at)
    with terminal("top", *at, "--every", "100ms") as screen:
        screen.wait_for("orders")
        screen.wait_for("billing nobody")
        screen.wait_for(r"billing nobody +0 +0 +2 +0 +0 +0 +0 +\d+m?s")  # the age of the oldest
        screen.type(b"s")
        screen.wait_for("sort \\(by depth\\)")
        screen.resize(60, 10)
        written = len(screen.written)
        while len(screen.written) < written + 2000:
            assert screen.read(5)
        screen.type(b"q")
        begun = time.monotonic()
        assert screen.end() == 0
        assert time.monotonic() - begun < SOON
        assert (
            screen.written.count(b"\x1b[?1049h") == screen.written.count(b"\x1b[?1049l") == 1
        )  # the screen is back
        assert screen.written.count(b"\x1b[?25h") >= 1  # and the cursor


def test_ctrl_c_ends_it(at: list[str]) -> None:
    output("topic", "create", "t", *at)
    with terminal("top", "t", *at) as screen:
        screen.wait_for("quit")
        screen.type(b"\x03")
        assert screen.end() == 130
        assert b"\x1b[?1049l" in screen.written


def test_without_a_terminal_it_says_what_to_use(at: list[str]) -> None:
    assert "nsquark stat" in failure("top", *at)


def test_what_fails_at_first_is_one_line(at: list[str]) -> None:
    with terminal("top", "nope", *at) as screen:
        assert screen.end() == 1
        assert screen.text == "nsquark: there is no topic 'nope'\r\n"
    with terminal("top", "--nsqd-http", "127.0.0.1:1") as screen:
        assert screen.end() == 1
        assert "127.0.0.1:1 does not answer" in screen.text


# ---- what is on the screen


def figures(messages: int, finished: int, in_flight: int = 0) -> dict[str, TopicFigures]:
    topic = TopicFigures("a.topic.with.a.name.that.is.longer.than.most", messages=messages)
    channel = ChannelFigures(
        "ch", depth=messages - finished - in_flight, in_flight=in_flight, messages=messages
    )
    channel.clients = 1
    topic.channels["ch"] = channel
    return {topic.name: topic}


def lines(view: TopView, width: int, height: int) -> list[str]:
    screen = console()
    screen.width = width
    with screen.capture() as capture:
        screen.print(view.render(width, height), end="")
    return capture.get().removesuffix("\n").split("\n")


def test_rates_are_those_between_two_looks() -> None:
    view = TopView(None)
    view.take(figures(100, 50), 1, 10.0)
    assert lines(view, 80, 24)[3].split()[1:] == ["-", "0"]
    view.take(figures(1100, 450, 200), 1, 12.0)
    title, _, _, topic, channel, *_ = lines(view, 80, 24)
    assert "in 500/s   out 200/s" in title
    assert topic.split()[1:] == ["500", "0"]
    assert channel.split() == ["ch", "500", "200", "450", "200", "0", "0", "0", "-"]
    # A count that goes back belongs to a topic that was created again.
    view.take(figures(0, 0), 1, 13.0)
    assert lines(view, 80, 24)[3].split()[1:] == ["0", "0"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12), (40, 6), (200, 50)])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    view = TopView(None)
    topics = {f"topic{n}": TopicFigures(f"topic{n}", depth=10**9, messages=10**12) for n in range(100)}
    view.take(topics, 3, 1.0)
    view.take(topics, 3, 2.0)
    view.trouble("nsqd 127.0.0.1:4151 does not answer: " + "x" * 300)
    shown = lines(view, width, height)
    assert len(shown) == height
    assert max(map(len, shown)) <= width
    assert "rows 1-" in shown[-1]


def test_keys_scroll_and_sort() -> None:
    view = TopView(None)
    topics = {f"t{n:02}": TopicFigures(f"t{n:02}", depth=n) for n in range(40)}
    view.take(topics, 1, 1.0)

    def first() -> str:
        return lines(view, 80, 14)[3].split()[0]

    assert first() == "t00"
    view.key(b"jj")
    assert first() == "t02"
    view.key(b"\x1b[A")
    assert first() == "t01"
    view.key(b"\x1b[6~")
    assert first() == "t10"
    view.key(b"\x1b[6~" * 20)
    assert first() == "t30"  # the last page is full
    view.key(b"s")
    assert first() == "t39"
