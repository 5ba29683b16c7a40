"""Topics as streams and tables of Spark, under `format("nsq")`. Needs `nsquark[spark]`."""

from .data_source import NsqDataSource

__all__ = ["NsqDataSource"]
