"""Too much of everything: connections, topics, channels, messages, backlogs, publishers, dead consumers.

`python -m reliability.overload [--only NAME]` prints what each costs an nsqd in memory and descriptors, how
late an untouched publisher is answered meanwhile, and how long a start takes with it. It judges the limits.
"""
