"""Spark's side of nsquark: topics as streams and tables, by `format("nsq")`. Needs `nsquark[spark]`."""

from .data_source import NsqDataSource

__all__ = ["NsqDataSource"]
