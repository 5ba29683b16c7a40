"""Disks that refuse, and files that are damaged: what nsqd says, what it keeps, and whether it recovers."""
