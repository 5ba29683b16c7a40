"""What a replica group keeps in etcd, and the client that asks it."""
