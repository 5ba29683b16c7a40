"""One seeded schedule: load and faults at random, then everything is mended and service has to return."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nsquark.nsqd.replica.automaton.states import Settings, State

from .machine import Machine
from .mutants import CORRECT, Mutant
from .promises import Broken
from .world import ETCD, World

FAULTS_END = 14.0  # seconds of simulated time with faults
RETURN = 2.0  # invariant: service returns within the lease and this
SLACK = 0.3  # opening the directory, and the way of the packets
MENDED = 20.0  # after all kinds of faults, timeouts follow one another

KINDS = {  # of faults, and how often each comes
    "kill": 4.0,
    "power": 3.0,
    "all-power": 1.0,
    "cut": 5.0,
    "etcd": 2.0,
    "pause": 3.0,
    "lease": 2.0,
    "hand-over": 1.0,
    "stop": 1.0,
    "disk": 1.0,
    "slow": 1.0,
    "force": 0.2,
}


@dataclass(slots=True)
class Ran:
    """What one schedule was like."""

    seed: int
    steps: int = 0
    answered: int = 0
    acquisitions: int = 0
    fences: int = 0
    lost: int = 0  # by salvage or force, which are allowed to
    forced: bool = False
    fault: str = ""


class Schedule:
    def __init__(self, seed: int, mutant: Mutant = CORRECT) -> None:
        rng = random.Random(~seed)
        self.ran = Ran(seed)
        self.members = rng.choice((2, 2, 3))
        settings = Settings(synced=rng.random() < 0.4, min_copies=rng.choice((1, 1, 2)))
        self.single = rng.random() < 0.15  # one fault alone, and the time until service returns
        if self.single:
            settings = Settings(synced=settings.synced)
        self.world = World(seed, settings, self.members, mutant)
        self.rng = rng

    def run(self) -> Ran:
        world, ran = self.world, self.ran
        try:
            if self.single:
                self._lose_primary()
            else:
                self._faults()
            self._mend()
        except Broken as broken:
            ran.fault = f"at {world.now:.3f} s: {broken}"
        ran.steps = world.steps
        ran.answered = len(world.promises.answered)
        ran.acquisitions, ran.fences, ran.lost = world.acquisitions, world.fences, world.promises.lost
        return ran

    # ---- load

    def _load(self, pace: float) -> None:
        world = self.world
        for machine in world.machines.values():
            if machine.automaton is not None and machine.paused_until <= world.now:
                machine.publish()
        world.at(world.now + self.rng.expovariate(pace), self._load, pace)

    # ---- one fault alone

    def _lose_primary(self) -> None:
        world = self.world
        world.harsh = False
        world.at(0.5, self._load, 10)
        if not world.run(8, lambda: len(world.group_state().isr) == self.members):
            raise Broken("the members are not in sync after 8 s")
        world.run(world.now + self.rng.uniform(0.5, 2))
        primary = next((machine for machine in world.machines.values() if machine.leads), None)
        if primary is None:
            raise Broken("no member leads although nothing has failed")
        if self.rng.random() < 0.3:
            primary.stop()
        elif self.rng.random() < 0.5:
            primary.lose_power()
        else:
            primary.paused_until = world.now + 8
        since = world.now
        limit = since + world.settings.lease + RETURN + SLACK
        others = [machine for machine in world.machines.values() if machine is not primary]
        if not world.run(limit, lambda: world.answered_at > since and any(each.leads for each in others)):
            raise Broken(f"no service {limit - since:.1f} s after the primary was lost")

    # ---- all kinds of faults

    def _faults(self) -> None:
        world = self.world
        world.at(0.3, self._load, self.rng.choice((2, 8)))
        world.at(self.rng.uniform(0.5, 3), self._fault)
        world.run(FAULTS_END)

    def _fault(self) -> None:
        world, rng = self.world, self.rng
        if world.now > FAULTS_END:
            return
        machine = rng.choice(list(world.machines.values()))
        if rng.random() < 0.4:  # faults of the primary matter most
            machine = next((each for each in world.machines.values() if each.leads), machine)
        now = world.now
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "kill":
            machine.stop()
            world.at(now + rng.uniform(0.05, 4), machine.start)
        elif kind == "stop":
            if machine.automaton is not None and machine.paused_until <= now:
                machine.stop_cleanly()
                world.at(now + rng.uniform(0.05, 4), machine.start)
        elif kind == "power":
            self._lose_power([machine])
        elif kind == "all-power":
            self._lose_power(list(world.machines.values()))
        elif kind == "cut":
            source, target = rng.sample([*world.machines, ETCD], 2)
            until = now + rng.choice((0.3, 1.5, 3, 6)) * rng.uniform(0.5, 1.5)
            world.links.cut(source, target, until)
            if rng.random() < 0.6:
                world.links.cut(target, source, until)
        elif kind == "etcd":
            world.etcd.up = False
            world.at(now + rng.uniform(0.3, 6), self._etcd_returns)
        elif kind == "pause":
            machine.paused_until = now + rng.uniform(0.2, 6)
        elif kind == "lease":
            leases = world.etcd.leases()
            if leases and world.etcd.up:
                world.etcd.revoke(rng.choice(leases))
        elif kind == "hand-over":
            if machine.automaton is not None and machine.paused_until <= now:
                machine.automaton.hand_over(machine.clock())
                machine.perform()
        elif kind == "force":
            if machine.automaton is not None and machine.paused_until <= now:
                machine.automaton.force(machine.clock())
                machine.perform()
        elif kind == "disk":
            machine.disk_hangs_until = now + rng.choice((1, 12))
        elif kind == "slow":
            world.links.slow_until = now + rng.uniform(0.5, 3)
        world.at(now + rng.expovariate(1.0), self._fault)

    def _lose_power(self, machines: list[Machine]) -> None:
        world = self.world
        for machine in machines:
            machine.lose_power()
            world.at(world.now + self.rng.uniform(0.5, 6), self._power_returns, machine)

    def _power_returns(self, machine: Machine) -> None:
        machine.powered = True
        machine.start()

    def _etcd_returns(self) -> None:
        if not self.world.etcd.up:
            self.world.etcd.restart(self.world.now)

    # ---- the end

    def _mend(self) -> None:
        world = self.world
        world.harsh = False
        world.links.heal()
        self._etcd_returns()
        for machine in world.machines.values():
            machine.paused_until = machine.disk_hangs_until = 0.0
            machine.powered = True
            machine.start()
        if not self._serves(MENDED):
            if not self._nobody_may_lead():
                raise Broken(f"no service {MENDED} s after everything was mended: {self._told()}")
            self.ran.forced = True
            machine = max(world.machines.values(), key=lambda each: each.disk.progress())
            assert machine.automaton is not None
            refused = machine.automaton.force(machine.clock())
            if refused:
                raise Broken(f"no member may lead, and force is refused: {refused}")
            machine.perform()
            if not self._serves(MENDED):
                raise Broken(f"no service {MENDED} s after force: {self._told()}")
        primary = next(machine for machine in world.machines.values() if machine.leads)
        world.promises.final(primary.disk.entries)

    def _serves(self, within: float) -> bool:
        """Whether a publish after now is answered in time, and all members get in sync."""
        world = self.world
        begun = world.now
        return world.run(
            begun + within,
            lambda: (
                world.answered_at > begun + 1
                and len(world.group_state().isr) == self.members
                and any(machine.leads for machine in world.machines.values())
            ),
        )

    def _nobody_may_lead(self) -> bool:
        """Every directory that could lead is in the middle of a catch-up: an operator has to choose."""
        isr = self.world.group_state().isr
        names = {incarnation.partition("@")[0] for incarnation in isr}
        for machine in self.world.machines.values():
            stored = machine.disk.stored
            assert stored is not None
            if machine.name in names and stored.settled:
                return False
        return True

    def _told(self) -> str:
        world = self.world
        members = []
        for machine in world.machines.values():
            automaton = machine.automaton
            state = automaton.state if automaton is not None else State.FENCED
            refusing = automaton.leading.refusing if automaton is not None and automaton.leading else ""
            settled = machine.disk.stored is not None and machine.disk.stored.settled
            members.append(f"{machine.name} {state.value} {settled=} {refusing}".strip())
        return f"{world.group_state()}; {'; '.join(members)}"


def run_schedule(seed: int, mutant: Mutant = CORRECT) -> Ran:
    return Schedule(seed, mutant).run()
