"""Etcd as the simulator has it: one linearizable store with leases, which may be away for a while."""

from __future__ import annotations

from nsquark.nsqd.replica.etcd.transactions import Answer, Delete, KeyValue, ModifiedAt, Put, Transaction


class LeaseGone(Exception):
    pass


class EtcdModel:
    def __init__(self, ttl: float) -> None:
        self.revision = 1
        self.up = True
        self.keys: dict[bytes, KeyValue] = {}
        self._ttl = ttl
        self._leases: dict[int, float] = {}  # and when each ends
        self._last = 0

    def grant(self, now: float) -> int:
        self._last += 1
        self._leases[self._last] = now + self._ttl
        return self._last

    def renew(self, lease: int, now: float) -> bool:
        if lease not in self._leases:
            return False
        self._leases[lease] = now + self._ttl
        return True

    def leases(self) -> list[int]:
        return list(self._leases)

    def revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            gone = [key for key, each in self.keys.items() if each.lease == lease]
            if gone:
                self.revision += 1
            for key in gone:
                del self.keys[key]

    def expire(self, now: float) -> None:
        for lease in [lease for lease, end in self._leases.items() if end <= now]:
            self.revoke(lease)

    def restart(self, now: float) -> None:
        """A new leader of etcd extends every lease."""
        self.up = True
        for lease in self._leases:
            self._leases[lease] = now + self._ttl

    def range(self, prefix: bytes) -> Answer:
        found = tuple(each for key, each in self.keys.items() if key.startswith(prefix))
        return Answer(True, self.revision, found)

    def commit(self, transaction: Transaction) -> Answer:
        """Raises LeaseGone where etcd answers that it does not know the lease of a put."""
        for compare in transaction.compare:
            found = self.keys.get(compare.key)
            if isinstance(compare, ModifiedAt):
                holds = (found.revision if found is not None else 0) == compare.revision
            else:
                holds = found is not None and found.lease == compare.lease
            if not holds:
                return Answer(False, self.revision, self.range(transaction.prefix).found)
        for write in transaction.writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise LeaseGone
        self.revision += 1
        for write in transaction.writes:
            if isinstance(write, Delete):
                self.keys.pop(write.key, None)
            else:
                self.keys[write.key] = KeyValue(write.key, write.value, self.revision, write.lease)
        return Answer(True, self.revision)
