"""A replica group of real nsqds with a real etcd, which lose their primary again and again under load.

`group` has the processes, `links` the proxies between them, `faults` what happens to both. The clients
(`producers`, `consumers`, `operators`, `readers`) enter what they send and get in a history (`history`), and
`checker` finds what no group may do. `series` has the rounds on one group, `running` the series of a run.
`mutants` are nsqds with a fault on purpose, which prove that the checker sees it.
"""
