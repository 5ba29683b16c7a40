"""Replica groups under all kinds of faults, simulated: the automaton of nsqd in a world of random schedules.

`python -m reliability.replicas [--schedules N] [--seed S] [--mutant NAME]` runs seeded schedules with
crashes, power losses, partitions, delays, lost answers of etcd, expired leases, pauses and skewed clocks.
Every invariant is checked after every step.
"""
