"""The rows of the tables of a topic and of a channel, and what their menus offer.

A page has dozens of rows with ten cells each. They are made by functions, because a template takes several
times as long. Every text is escaped, here or in `cells`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from ...cluster import ChannelStats, ClientStats, Latency, Percentile, TopicStats
from . import cells
from .cells import safe
from .format import count, duration_ns, kept, percentile, rate, size
from .links import Links

Entries = list[tuple[str, str, str]]

MENUS_KEPT = 4096
PAUSED = ' <span class="tag warn">paused</span>'
_ROW = '<tr role="row" data-key="'
_NAME = '"><th scope="row" role="rowheader" class="name">'
_MENU = '<td role="cell" class="n menu">'
_TOTAL = '<tr role="row"><th scope="row" role="rowheader">Total</th>'
_BLANK = '<td role="cell" class="none"></td>'


class Rows:
    """`lookupds` says whether there are nsqlookupds, without which nothing can be tombstoned."""

    def __init__(self, link: Links) -> None:
        self._link = link
        # By what they depend on. A page that is looked at has the same menus every few seconds.
        self._menus: dict[tuple[str, str, str, bool, bool, bool], str] = {}

    # ---- of a topic

    def channels(self, topic: TopicStats, rates: Mapping[str, float | None], admin: bool) -> Markup:
        """The channels of a merged topic."""
        rows = []
        for channel in topic.channels:
            name = channel.channel_name
            speed = rates[name]
            dead = channel.dead_letter_count
            rows.append(
                f'{_ROW}{safe(name)}{_NAME}<a href="{safe(self._link.channel(topic.topic_name, name))}">'
                f"{safe(name)}</a>{PAUSED if channel.paused else ''}"
                + (f' <span class="tag bad">{count(dead)} dead</span>' if dead else "")
                + (
                    ' <span class="tag warn">no consumer</span>'
                    if channel.depth and not channel.client_count
                    else ""
                )
                + "</th>\n"
                + cells.numbers(("Rate /s", rate(speed), not speed), *_counts(channel))
                + _latency_cells(channel.latency, topic.latency)
                + (self._menu(channel, everywhere=True) if admin else "")
                + "</tr>\n"
            )
        return Markup("".join(rows))

    def nodes_of_topic(self, topic: TopicStats, admin: bool, lookupds: bool) -> Markup:
        """The nodes of a merged topic."""
        rows = []
        for node in topic.nodes or ():
            rows.append(
                self._node_head(node)
                + cells.numbers(*_counts_of_topic(node))
                + _kept_cells(node, topic)
                + _latency_cells(node.latency, topic.latency)
                + (self._menu(node, lookupds=lookupds) if admin else "")
                + "</tr>\n"
            )
        return Markup("".join(rows))

    def total_of_topic(self, topic: TopicStats, admin: bool) -> Markup:
        told = (
            cells.numbers(*_counts_of_topic(topic))
            + _kept_total(topic)
            + _latency_cells(topic.latency, topic.latency)
        )
        return Markup(f"{_TOTAL}{told}{_BLANK if admin else ''}</tr>")

    # ---- of a channel

    def clients(self, clients: Iterable[ClientStats]) -> Markup:
        rows = []
        for client in clients:
            node = safe(client.node)
            rows.append(
                f"{_ROW}{node} {safe(client.remote_address)}{_NAME}{cells.client_name(client)}</th>"
                f'<td role="cell" class="wide" data-label="nsqd">'
                f'<a href="{safe(self._link.node(client.node))}">{node}</a></td>'
                f'<td role="cell" class="wide">{cells.client_tags(client)}</td>\n'
                + cells.numbers(
                    ("In flight", client.in_flight_count),
                    ("RDY", client.ready_count),
                    ("Finished", client.finish_count),
                    ("Requeued", client.requeue_count),
                    ("Messages", client.message_count),
                    ("Connected", duration_ns(client.connected_ns)),
                )
                + "</tr>\n"
            )
        return Markup("".join(rows))

    def nodes_of_channel(self, channel: ChannelStats, admin: bool, lookupds: bool) -> Markup:
        """The nodes of a merged channel."""
        rows = []
        for node in channel.nodes or ():
            rows.append(
                self._node_head(node)
                + _cells_of_channel(node, channel)
                + (self._menu(node, lookupds=lookupds) if admin else "")
                + "</tr>\n"
            )
        return Markup("".join(rows))

    def total_of_channel(self, channel: ChannelStats, admin: bool) -> Markup:
        return Markup(f"{_TOTAL}{_cells_of_channel(channel, channel)}{_BLANK if admin else ''}</tr>")

    # ---- what may be done

    def button(
        self, action: str, label: str, kind: str = "", topic: str = "", channel: str = "", node: str = ""
    ) -> Markup:
        """A button of the page itself, which leads to the question whether the action is meant."""
        return cells.button(self._link.act(action, topic, channel, node), label, kind)

    def channel_menu(self, channel: ChannelStats) -> Entries:
        """What may be done with a channel on all of its nodes: label, address and kind of each entry."""
        link, topic, name = self._link, channel.topic_name, channel.channel_name
        pause = "unpause" if channel.paused else "pause"
        return [
            (pause.capitalize(), link.act(pause, topic, name), ""),
            ("Move (seek)", link("/seek", topic=topic, channel=name), "page"),
            ("Empty", link.act("empty", topic, name), "danger"),
            ("Delete", link.act("delete", topic, name), "danger"),
        ]

    def node_menu(self, record: TopicStats | ChannelStats, lookupds: bool) -> Entries:
        """What may be done on one node."""
        link, topic, node = self._link, record.topic_name, record.node
        channel = record.channel_name if isinstance(record, ChannelStats) else ""
        pause = "unpause" if record.paused else "pause"
        menu = [
            (f"{pause.capitalize()} here", link.act(pause, topic, channel, node), ""),
            ("Empty here", link.act("empty", topic, channel, node), "danger"),
        ]
        if channel:
            menu.append(("Delete here", link.act("delete", topic, channel, node), "danger"))
        if isinstance(record, TopicStats) and record.retention_bytes is not None:
            menu.append(("Retention here", link.act("retention", topic, "", node), ""))
        if not channel and lookupds:
            menu.append(("Tombstone", link.act("tombstone", topic, "", node), "danger"))
        return menu

    def _menu(
        self, record: TopicStats | ChannelStats, *, lookupds: bool = False, everywhere: bool = False
    ) -> str:
        """The cell with the menu of a record: of a channel `everywhere`, or of its one node."""
        channel = record.channel_name if isinstance(record, ChannelStats) else ""
        keeps = isinstance(record, TopicStats) and record.retention_bytes is not None
        key = record.topic_name, channel, record.node, record.paused, lookupds, keeps
        made = self._menus.get(key)
        if made is None:
            if len(self._menus) >= MENUS_KEPT:
                self._menus.clear()
            if everywhere and isinstance(record, ChannelStats):
                menu = cells.menu(f"channel {channel}", self.channel_menu(record))
            else:
                menu = cells.menu(f"node {record.node}", self.node_menu(record, lookupds))
            made = self._menus[key] = f"{_MENU}{menu}</td>"
        return made

    def _node_head(self, record: TopicStats | ChannelStats) -> str:
        node = safe(record.node)
        return (
            f'{_ROW}{node}{_NAME}<a href="{safe(self._link.node(record.node))}">'
            f"{safe(record.hostname) or node}</a>{PAUSED if record.paused else ''}"
            f'<span class="sub">{node}</span></th>\n'
        )


# ---- cells of a record


def _split(record: TopicStats | ChannelStats) -> str:
    """How much is in memory and how much on disk."""
    return f"{record.memory_depth:,} + {record.backend_depth:,}"


def keeps_log(topic: TopicStats) -> bool:
    """Whether a node of a merged topic tells what it keeps of the log: nsquark's nsqd does."""
    return any(node.retention_bytes is not None for node in topic.nodes or ())


def has_archive(topic: TopicStats) -> bool:
    """Whether a node of a merged topic brings what it lets go of to an archive."""
    return any(node.archived_bytes is not None for node in topic.nodes or ())


def _kept_cells(node: TopicStats, merged: TopicStats) -> str:
    """How large the log is, and what is kept of it; nothing where no node tells."""
    if not keeps_log(merged):
        return ""
    archived = "" if node.archived_bytes is None else size(node.archived_bytes)
    archive = [("Archive", archived or None)] if has_archive(merged) else []
    if node.retention_bytes is None or node.log_bytes is None:
        return cells.numbers(("Log", None), ("Retention", None), *archive)
    held = kept(node.retention_bytes, node.retention_time or 0)
    return cells.numbers(("Log", size(node.log_bytes)), ("Retention", held, held == "nothing"), *archive)


def _kept_total(topic: TopicStats) -> str:
    if not keeps_log(topic):
        return ""
    log = sum(node.log_bytes or 0 for node in topic.nodes or ())
    archived = sum(node.archived_bytes or 0 for node in topic.nodes or ())
    archive = cells.numbers(("Archive", size(archived))) if has_archive(topic) else ""
    return cells.numbers(("Log", size(log))) + _BLANK + archive


def _counts_of_topic(topic: TopicStats) -> Iterable[tuple[object, ...]]:
    return (
        ("Depth", topic.depth),
        ("Memory + disk", _split(topic), not topic.depth),
        ("Messages", topic.message_count),
        ("Channels", len(topic.channels)),
    )


def _counts(channel: ChannelStats) -> Iterable[tuple[object, ...]]:
    return (
        ("Depth", channel.depth),
        ("Memory + disk", _split(channel), not channel.depth),
        ("In flight", channel.in_flight_count),
        ("Deferred", channel.deferred_count),
        ("Requeued", channel.requeue_count),
        ("Timed out", channel.timeout_count),
        ("Messages", channel.message_count),
        ("Clients", channel.client_count),
    )


def _cells_of_channel(record: ChannelStats, merged: ChannelStats) -> str:
    told = cells.numbers(*_counts(record))
    if merged.held_bytes is not None:
        kept = None if record.held_bytes is None else size(record.held_bytes)
        told += cells.numbers(("Log kept", kept))
    return told + _latency_cells(record.latency, merged.latency)


def _latency_cells(latency: Latency, wanted: Latency) -> str:
    """A cell for each percentile that the table has a column for."""
    told = []
    for column in wanted.percentiles or ():
        label = percentile(column.quantile)
        mine = _found(latency, column)
        if mine is None:
            told.append(f'<td role="cell" class="n zero" data-label="{label}">–</td>')
        else:
            told.append(
                f'<td role="cell" class="n" data-label="{label}" title="lowest node {duration_ns(mine.min)}, '
                f'highest {duration_ns(mine.max)}">{duration_ns(mine.average)}</td>'
            )
    return "".join(told)


def _found(latency: Latency, column: Percentile) -> Percentile | None:
    """The percentile of a column, if anything was measured."""
    for each in latency.percentiles or ():
        if each.quantile == column.quantile:
            return each if each.count else None
    return None
