"""Spark's session, and a streaming query from its start to its end."""
