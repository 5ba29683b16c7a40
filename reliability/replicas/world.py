"""The simulated world: one queue of events, a network, an etcd, the machines; all of it from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from nsquark.nsqd.replica.automaton import actions
from nsquark.nsqd.replica.automaton.group import GroupState
from nsquark.nsqd.replica.automaton.states import Settings
from nsquark.nsqd.replica.etcd.transactions import Answer, Transaction

from .etcd_model import EtcdModel, LeaseGone
from .machine import Machine
from .mutants import CORRECT, Mutant
from .network import Connection, Links, Message
from .promises import Promises

ETCD = "etcd"
ANSWER_TIMEOUT = 1.0  # of a request to etcd


class World:
    def __init__(self, seed: int, settings: Settings, members: int, mutant: Mutant = CORRECT) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.settings = settings
        self.mutant = mutant
        self.promises = Promises()
        self.etcd = EtcdModel(settings.lease)
        self.links = Links()
        self.dirty = False  # whether a disk, the isr or what is committed has changed
        self.steps = self.fences = self.acquisitions = 0
        self.answered_at = 0.0
        self.harsh = True  # whether requests to etcd get lost
        self._old_acks: list[tuple[Connection, Message]] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._messages = 0
        self.machines = {name: Machine(self, name) for name in "abc"[:members]}
        first = self.machines["a"]
        first.start()
        assert first.disk.stored is not None
        me = first.disk.stored.incarnation
        self.etcd.commit(first.keys.bootstrap(GroupState(1, 0, me, (me,))))
        for machine in list(self.machines.values())[1:]:
            machine.start()

    def next_message(self) -> int:
        self._messages += 1
        return self._messages

    # ---- events

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, call, args))

    def after(self, delay: float, machine: Machine, call: Callable[..., None], *args: Any) -> None:
        """Call it unless the machine's process is another one by then; while it is paused, later."""
        self.at(self.now + delay, self._on, machine, machine.life, call, args)

    def _on(self, machine: Machine, life: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if machine.life != life:
            return
        if machine.paused_until > self.now:
            self.at(machine.paused_until, self._on, machine, life, call, args)
        else:
            call(*args)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Step by step up to a time. Whether `done` became true."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, args = heapq.heappop(events)
            self.etcd.expire(self.now) if self.etcd.up else None
            call(*args)
            self.steps += 1
            if self.dirty:
                self.dirty = False
                self._check_isr()
            if done is not None and done():
                return True
        self.now = max(self.now, until)
        return False

    def group_state(self) -> GroupState:
        return GroupState.parse(self.etcd.keys[self.machines["a"].keys.state].value)

    def _check_isr(self) -> None:
        isr = self.group_state().isr
        for machine in self.machines.values():
            stored = machine.disk.stored
            if stored is None or stored.incarnation not in isr:
                continue
            if machine.lost_power and not self.settings.synced:
                continue  # its next start makes it another incarnation
            self.promises.check_isr(stored.incarnation, machine.disk.entries)

    # ---- the network

    def delay(self) -> float:
        rng = self.rng
        if self.now < self.links.slow_until:
            return rng.uniform(0.05, 1.5)
        return rng.uniform(0.0005, 0.01)

    def send(self, connection: Connection, to_follower: bool, message: Message) -> None:
        queue = connection.to_follower if to_follower else connection.to_primary
        queue.append(message)
        self.at(self.now + self.delay(), self._pump, connection, to_follower)
        if message[0] == "ack" and self.harsh and self.rng.random() < 0.1:
            self._old_acks.append((connection, message))

    def stray(self, machine: Machine) -> None:
        """An old acknowledgement comes once more, over another connection than the one it was sent on."""
        if machine.automaton is not None and self._old_acks and self.harsh:
            connection, message = self.rng.choice(self._old_acks)
            machine.automaton.acknowledged(machine.clock(), connection.incarnation, *message[1:])
            machine.perform()

    def _pump(self, connection: Connection, to_follower: bool) -> None:
        source, target = connection.primary, connection.follower
        life = connection.follower_life
        if not to_follower:
            source, target, life = target, source, connection.primary_life
        machine = self.machines[target]
        held_until = max(self.links.cut_until(source, target), machine.paused_until)
        if held_until > self.now and machine.life == life:
            self.at(held_until + 0.001, self._pump, connection, to_follower)
            return
        message = (connection.to_follower if to_follower else connection.to_primary).popleft()
        if machine.life != life or machine.automaton is None:
            return
        if to_follower:
            machine.heard_by_follower(connection, message)
        else:
            machine.heard_by_primary(connection, message)

    def connect(self, follower: Machine, name: str, term: int) -> None:
        primary = self.machines[name]
        assert follower.automaton is not None
        connection = Connection(follower.name, follower.life, name, primary.life, term, follower.automaton.me)
        follower.stream = connection
        if self.links.cut_until(follower.name, name) <= self.now:
            self.at(self.now + self.delay(), self._arrive, connection)

    def _arrive(self, connection: Connection) -> None:
        primary = self.machines[connection.primary]
        if not primary.powered:
            return
        connection.primary_life = primary.life
        if primary.automaton is None:
            self.send(connection, True, ("refused",))
        else:
            self.after(0, primary, primary.asked_for_stream, connection)

    # ---- etcd

    def ask(self, machine: Machine, action: Any) -> None:
        """A request goes to etcd. It may get lost on its way, be held up, be repeated, or lose its answer."""
        rng = self.rng
        sent = self.now
        luck = rng.random() if self.harsh else 1.0
        delay = self.delay()
        if luck < 0.02:
            delay = rng.uniform(0.5, 4.0)
        if self.links.cut_until(machine.name, ETCD) > self.now or (luck > 0.99 and self.harsh):
            self._fail(machine, machine.life, action, sent)
            return
        # What is to be written is what the member wants now, not when it arrives.
        request = self._request(machine, action)
        args = (machine, machine.life, action, request, sent)
        if 0.02 < luck < 0.03 and isinstance(request, Transaction):
            self.at(self.now + self.delay(), self._apply, machine, -1, action, request, sent)
        self.at(self.now + delay, self._apply, *args)

    def _request(self, machine: Machine, action: Any) -> Transaction | None:
        keys = machine.keys
        match action:
            case actions.Campaign():
                return keys.campaign(action)
            case actions.ChangeIsr():
                return keys.change_isr(action)
            case actions.Reclaim():
                return keys.reclaim(action)
            case actions.Resign():
                return keys.resign(action)
            case actions.Announce():
                return keys.announce(machine.member_key(), action.lease)
        return None

    def _fail(self, machine: Machine, life: int, action: Any, sent: float) -> None:
        if life == machine.life and not isinstance(action, actions.Announce):
            delay = max(0.0, sent + ANSWER_TIMEOUT - self.now)
            self.after(delay, machine, self._failed, machine, action.number)

    def _failed(self, machine: Machine, number: int) -> None:
        if machine.automaton is not None:
            machine.automaton.request_failed(machine.clock(), number)
            machine.perform()

    def _apply(
        self, machine: Machine, life: int, action: Any, request: Transaction | None, sent: float
    ) -> None:
        """The request is at etcd. A life of -1 is that of a first try, whose answer is not heard."""
        etcd = self.etcd
        if not etcd.up:
            self._fail(machine, life, action, sent)
            return
        answer: Answer | None = None
        lease = 0
        if request is not None:
            try:
                answer = etcd.commit(request)
            except LeaseGone:
                self._fail(machine, life, action, sent)
                return
            if answer.succeeded:
                self._committed(machine, action)
        elif isinstance(action, actions.ReadGroup):
            answer = etcd.range(machine.keys.root)
        elif isinstance(action, actions.RenewSession):
            lease = action.lease if etcd.renew(action.lease, self.now) else 0
        elif life == machine.life and machine.automaton is not None:
            lease = etcd.grant(self.now)
            answer = etcd.commit(machine.keys.open_session(machine.member_key(), lease, action.seen))
        back = self.delay()
        late = self.now + back > sent + ANSWER_TIMEOUT
        if late or self.links.cut_until(ETCD, machine.name) > self.now:
            self._fail(machine, life, action, sent)
        elif life == machine.life:
            self.after(back, machine, self._answer, machine, action, answer, lease)

    def _committed(self, machine: Machine, action: Any) -> None:
        self.dirty = True
        if isinstance(action, actions.Campaign):
            self.acquisitions += 1
            lossy = action.kind is not actions.Acquisition.CAMPAIGN
            if action.kind is actions.Acquisition.SALVAGE and self.settings.synced:
                raise AssertionError("a salvage where only synced bytes are acknowledged")
            state = action.state
            self.promises.acquired(state.term, state.primary, lossy, machine.disk.entries)

    def _answer(self, machine: Machine, action: Any, answer: Answer | None, lease: int) -> None:
        automaton = machine.automaton
        if automaton is None or isinstance(action, actions.Announce):
            return
        now, number = machine.clock(), action.number
        if isinstance(action, actions.OpenSession):
            assert answer is not None
            if answer.succeeded:
                automaton.session_opened(now, number, lease, answer.revision)
            else:
                automaton.request_failed(now, number)
                automaton.group_read(now, 0, machine.keys.parse(answer))
        elif isinstance(action, actions.RenewSession):
            if lease:
                automaton.session_renewed(now, number)
            else:
                automaton.session_lost(now, number)
        else:
            assert answer is not None
            if isinstance(action, actions.ReadGroup):
                automaton.group_read(now, number, machine.keys.parse(answer))
            else:
                view = None if answer.succeeded else machine.keys.parse(answer)
                automaton.transaction_answered(now, number, answer.succeeded, answer.revision, view)
        machine.perform()
