"""A machine of the simulated group: its disk, its clock, and the process that drives an automaton.

The disk is one log: entries in files by term. What is not synced goes with the power; what is written
outlives the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nsquark.nsqd.replica.automaton import actions
from nsquark.nsqd.replica.automaton.automaton import Automaton
from nsquark.nsqd.replica.automaton.group import MemberKey, Progress
from nsquark.nsqd.replica.automaton.incarnation import StoredMember
from nsquark.nsqd.replica.automaton.states import Directory, State
from nsquark.nsqd.replica.etcd.group_keys import GroupKeys

from .network import Connection, Message
from .promises import Broken, Entry

if TYPE_CHECKING:
    from .world import World


@dataclass(slots=True)
class Disk:
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    term: int = 0
    epoch: int = 0
    stored: StoredMember | None = None

    def progress(self) -> Progress:
        found: dict[int, int] = {}
        for term, _ in self.entries:
            found[term] = found.get(term, 0) + 1
        return tuple(sorted(found.items()))


class Machine:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.keys = GroupKeys("g", name)
        self.founds = name == "a"  # the group begins with its disk
        self.disk = Disk()
        self.automaton: Automaton | None = None
        self.life = 0  # counts processes: an event for an older one is void
        self.powered = True
        self.lost_power = False  # since the last start
        self.paused_until = 0.0
        self.disk_hangs_until = 0.0
        self.boots = 0
        rng = world.rng
        self._rate = rng.choice((1.0, 1.0, 0.9, 1.1))
        self._offset = rng.uniform(0, 1000)
        self.base = 0  # the length of the log when the term was opened
        self.pending: dict[int, int] = {}  # sequence: message that waits for its OK
        self.followers: dict[str, Connection] = {}
        self.stream: Connection | None = None

    def clock(self) -> float:
        return self._offset + self.world.now * self._rate

    @property
    def leads(self) -> bool:
        automaton = self.automaton
        return (
            automaton is not None
            and automaton.state is State.PRIMARY
            and automaton.leading is not None
            and automaton.leading.serving
        )

    # ---- life

    def start(self) -> None:
        if self.automaton is not None or not self.powered:
            return
        world, disk = self.world, self.disk
        self.life += 1
        boot = f"boot{self.boots}"
        incarnation = world.mutant.incarnation_at_start(self.name, disk.stored, boot, f"{self.life:x}")
        settled = disk.stored.settled if disk.stored is not None else True
        belongs = disk.stored.belongs if disk.stored is not None else self.founds
        disk.stored = StoredMember(incarnation, boot, False, world.settings.synced, settled, belongs=belongs)
        self.lost_power = False
        self.automaton = world.mutant.automaton(
            world.settings, Directory(incarnation, settled, disk.term, belongs), self.clock()
        )
        self.perform()
        world.after(world.rng.uniform(0, 0.2), self, self.tick)

    def stop(self) -> None:
        """The process ends, at once; its sockets are closed by the kernel."""
        self.life += 1
        self.automaton = None
        self.pending.clear()
        for connection in list(self.followers.values()):
            self.world.send(connection, True, ("closed",))
        self.followers.clear()
        if self.stream is not None:
            self.world.send(self.stream, False, ("closed",))
            self.stream = None

    def stop_cleanly(self) -> None:
        self.disk.synced = len(self.disk.entries)
        if self.disk.stored is not None:
            self.disk.stored = replace(self.disk.stored, clean=True)
        self.stop()

    def lose_power(self) -> None:
        self.followers.clear()  # no socket is closed
        self.stream = None
        self.stop()
        disk = self.disk
        keep = self.world.rng.randint(disk.synced, len(disk.entries))
        del disk.entries[keep:]
        disk.synced = len(disk.entries)
        self.powered = False
        self.lost_power = True
        self.boots += 1
        self.world.dirty = True

    def restart_soon(self) -> None:
        self.stop()
        self.world.at(self.world.now + self.world.rng.uniform(0.02, 0.3), self.start)

    def tick(self) -> None:
        automaton = self.automaton
        if automaton is not None:
            automaton.tick(self.clock())
            self.perform()
            self.world.after(0.2, self, self.tick)

    # ---- what the automaton wants

    def perform(self) -> None:
        automaton = self.automaton
        while automaton is not None and automaton is self.automaton:
            wanted = automaton.take()
            if not wanted:
                return
            for action in wanted:
                _HANDLERS[type(action)](self, action)
                if automaton is not self.automaton:
                    return

    def member_key(self) -> MemberKey:
        stored = self.disk.stored
        assert stored is not None
        settled = stored.settled and stored.belongs
        return MemberKey(stored.incarnation, settled, self.disk.progress())

    def drop_stream(self, action: actions.DropStream) -> None:
        if self.stream is not None:
            self.world.send(self.stream, False, ("closed",))
            self.stream = None

    def unsettle(self, action: actions.Unsettle) -> None:
        assert self.disk.stored is not None
        self.disk.stored = replace(self.disk.stored, settled=False)

    def settle(self, action: actions.Settle) -> None:
        assert self.disk.stored is not None
        self.disk.stored = replace(self.disk.stored, settled=True, belongs=True)

    def acknowledge(self, action: actions.Acknowledge) -> None:
        if self.stream is not None:
            self.world.send(self.stream, False, ("ack", action.term, action.written, action.synced))

    def open_directory(self, action: actions.OpenDirectory) -> None:
        self.world.after(self.world.rng.uniform(0.01, 0.2), self, self.opened, action)

    def opened(self, action: actions.OpenDirectory) -> None:
        automaton, disk = self.automaton, self.disk
        assert automaton is not None
        assert disk.stored is not None
        if automaton.state is not State.PRIMARY:
            return
        self.world.promises.opened(action.term, automaton.me, disk.stored.settled, disk.entries)
        if self.world.settings.synced:
            disk.synced = len(disk.entries)
        if action.new_epochs:
            disk.epoch = action.term
        disk.term = action.term
        disk.stored = replace(disk.stored, belongs=True)
        self.base = len(disk.entries)
        automaton.directory_opened(self.clock())
        self.perform()

    def serve(self, action: actions.Serve) -> None:
        pass

    def broadcast(self, message: Message) -> None:
        for connection in self.followers.values():
            self.world.send(connection, True, message)

    def send_frame(self, sequence: int) -> None:
        entry = self.disk.entries[self.base + sequence - 1]
        self.broadcast(("frame", sequence, entry))

    def send_heartbeat(self, action: actions.SendHeartbeat) -> None:
        self.broadcast(("beat",))

    def send_handover(self, action: actions.SendHandover) -> None:
        self.broadcast(("handover",))

    def disconnect(self, action: actions.Disconnect) -> None:
        connection = self.followers.pop(action.incarnation, None)
        if connection is not None:
            self.world.send(connection, True, ("closed",))

    def release(self, action: actions.Release) -> None:
        automaton, world = self.automaton, self.world
        assert automaton is not None
        assert automaton.leading is not None
        answered = []
        for sequence in [each for each in self.pending if each <= action.sequence]:
            answered.append(self.pending.pop(sequence))
        if answered and len(automaton.leading.rule.isr) < world.settings.min_copies:
            raise Broken("a publish is answered with too few copies")
        world.promises.release(action.term, self.disk.entries, self.base + action.sequence, answered)
        if answered:
            world.answered_at = world.now
        world.dirty = True

    def ignore(self, action: actions.Action) -> None:
        pass

    def fence(self, action: actions.Fence) -> None:
        self.world.fences += 1
        self.restart_soon()

    # ---- a primary

    def publish(self) -> None:
        automaton = self.automaton
        if automaton is None or automaton.state is not State.PRIMARY or automaton.leading is None:
            return
        leading, world = automaton.leading, self.world
        if leading.refusing:
            return
        message = world.next_message()
        entry = (leading.term, message)
        sequence = leading.written + 1
        world.promises.append(leading.term, len(self.disk.entries), message)
        self.disk.entries.append(entry)
        self.pending[sequence] = message
        automaton.written(self.clock(), sequence)
        self.send_frame(sequence)
        self.perform()
        if world.rng.random() < 0.1:
            world.stray(self)
        self.sync_later(sequence, None)

    def sync_later(self, sequence: int, stream: Connection | None) -> None:
        world = self.world
        if not world.settings.synced and world.rng.random() < 0.7:
            return
        delay = world.rng.uniform(0.001, 0.05) + max(0.0, self.disk_hangs_until - world.now)
        world.after(delay, self, self.has_synced, sequence, len(self.disk.entries), stream)

    def has_synced(self, sequence: int, length: int, stream: Connection | None) -> None:
        automaton = self.automaton
        if automaton is None or length > len(self.disk.entries) or stream is not self.stream:
            return
        self.disk.synced = max(self.disk.synced, length)
        if stream is None:
            automaton.synced(self.clock(), sequence)
        else:
            automaton.frame_synced(self.clock(), stream.term, sequence)
        self.perform()

    def asked_for_stream(self, connection: Connection) -> None:
        """A follower has connected."""
        automaton, world = self.automaton, self.world
        assert automaton is not None
        if not automaton.follower_joined(self.clock(), connection.incarnation, connection.term):
            world.send(connection, True, ("refused",))
            return
        for incarnation, other in list(self.followers.items()):
            if other.follower == connection.follower:
                del self.followers[incarnation]
        self.followers[connection.incarnation] = connection
        assert automaton.leading is not None
        manifest = (automaton.leading.written, self.disk.entries[:], self.disk.epoch)
        world.send(connection, True, ("manifest", *manifest))

    def heard_by_primary(self, connection: Connection, message: Message) -> None:
        automaton = self.automaton
        assert automaton is not None
        if message[0] == "closed":
            if self.followers.get(connection.incarnation) is connection:
                del self.followers[connection.incarnation]
                automaton.follower_left(self.clock(), connection.incarnation)
        else:
            automaton.acknowledged(self.clock(), connection.incarnation, *message[1:])
        self.perform()

    # ---- a standby

    def connect(self, action: actions.Connect) -> None:
        self.world.connect(self, action.member, action.term)

    def heard_by_follower(self, connection: Connection, message: Message) -> None:
        automaton = self.automaton
        if automaton is None or connection is not self.stream:
            return
        if connection.fetching and message[0] in ("frame", "handover"):
            connection.held.append(message)
            return
        now, disk, kind = self.clock(), self.disk, message[0]
        if kind == "beat":
            automaton.heartbeat_received(now, connection.term)
        elif kind == "frame":
            self._apply(connection, message[1], message[2])
        elif kind == "manifest":
            _, sequence, entries, epoch = message
            if self.world.settings.synced:
                disk.synced = len(disk.entries)
            alters = disk.entries != entries or disk.epoch != epoch
            disk.term = max(disk.term, connection.term)
            connection.manifest = message
            automaton.manifest_received(now, connection.term, sequence, alters)
        elif kind == "refused":
            self.stream = None
            automaton.stream_refused(now)
        elif kind == "closed":
            self.stream = None
            automaton.stream_lost(now)
        elif kind == "handover":
            automaton.handover_received(now, connection.term)
        self.perform()

    def _apply(self, connection: Connection, sequence: int, entry: Entry) -> None:
        automaton = self.automaton
        assert automaton is not None
        self.world.promises.append(entry[0], len(self.disk.entries), entry[1])
        self.disk.entries.append(entry)
        automaton.frames_written(self.clock(), connection.term, sequence, sequence)
        self.sync_later(sequence, connection)

    def fetch(self, action: actions.Fetch) -> None:
        """Cut what is long, then fetch piece by piece; a crash in between leaves it unsettled."""
        connection = self.stream
        assert connection is not None
        connection.fetching = True
        entries: list[Entry] = connection.manifest[2]
        disk = self.disk
        common = 0
        for mine, other in zip(disk.entries, entries, strict=False):
            if mine != other:
                break
            common += 1
        del disk.entries[common:]
        disk.synced = min(disk.synced, common)
        self.world.dirty = True
        self.world.after(self.world.rng.uniform(0.005, 0.3), self, self._fetch_more, connection, action)

    def _fetch_more(self, connection: Connection, action: actions.Fetch) -> None:
        automaton, disk, world = self.automaton, self.disk, self.world
        if connection is not self.stream or automaton is None:
            return
        _, sequence, entries, epoch = connection.manifest
        have = len(disk.entries)
        more = entries[have : have + max(1, len(entries) // 2)]
        for position, (term, message) in enumerate(more, have):
            world.promises.append(term, position, message)
        disk.entries.extend(more)
        if len(disk.entries) < len(entries):
            world.after(world.rng.uniform(0.005, 0.2), self, self._fetch_more, connection, action)
            return
        disk.epoch = epoch
        if world.settings.synced:
            disk.synced = len(disk.entries)
        held, connection.held = connection.held, []
        connection.fetching = False
        automaton.fetched(self.clock(), connection.term, sequence)
        self.perform()
        for message in held:
            self.heard_by_follower(connection, message)


def _ask(machine: Machine, action: actions.Action) -> None:
    machine.world.ask(machine, action)


_HANDLERS = {
    actions.OpenSession: _ask,
    actions.RenewSession: _ask,
    actions.Announce: _ask,
    actions.ReadGroup: _ask,
    actions.Campaign: _ask,
    actions.ChangeIsr: _ask,
    actions.Reclaim: _ask,
    actions.Resign: _ask,
    actions.Connect: Machine.connect,
    actions.DropStream: Machine.drop_stream,
    actions.Unsettle: Machine.unsettle,
    actions.Fetch: Machine.fetch,
    actions.Settle: Machine.settle,
    actions.Acknowledge: Machine.acknowledge,
    actions.OpenDirectory: Machine.open_directory,
    actions.Serve: Machine.serve,
    actions.SendHeartbeat: Machine.send_heartbeat,
    actions.SendHandover: Machine.send_handover,
    actions.Disconnect: Machine.disconnect,
    actions.Release: Machine.release,
    actions.RefusePublishes: Machine.ignore,
    actions.AcceptPublishes: Machine.ignore,
    actions.Fence: Machine.fence,
}
