"""A bad network: slow readers, half-open connections, resets, churn, clock steps, latency, loss, partitions.

`python -m reliability.network [--only NAME]` tries it with real daemons and two clients, ours and pynsq.
Hosts are network namespaces, which need root; without it their trials are skipped.
"""
