"""Finding the logs of a replica group by the addresses of all its members."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.spark.errors import Unreachable
from nsquark.spark.options import Addresses
from nsquark.spark.source.directory import Directory
from nsquark.spark.source.logs import ask_log_range, find_logs
from nsquark.spark.source.subscription import Subscription
from tests.replica_group import needs_etcd, replica_group


@needs_etcd
def test_a_member_that_led_once_and_is_a_standby_now_is_passed_over(tmp_path: Path) -> None:
    with replica_group(tmp_path) as group:
        a, b = group.pair()
        assert a.ask("POST", "/pub?topic=t", b"one")[0] == 200
        directory = Directory(Addresses(nsqd_http=(a.url, b.url)), Subscription(("t",)))
        (before,) = find_logs(directory)
        assert before.node.url == a.url
        assert a.ask("POST", "/replica/handover")[0] == 200
        b.serves()
        a.is_in_sync()
        (after,) = find_logs(directory)
        assert after.node.url == b.url
        assert (after.key, after.epoch) == (before.key, before.epoch)
        with pytest.raises(Unreachable, match="standby"):
            ask_log_range(before.node, directory.access, "t")
