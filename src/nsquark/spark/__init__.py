"""Topics as streams and tables of Spark, under `format("nsq")`. Needs `nsquark[spark]`."""

from .data_source import NsqDataSource
from .reports import LogProgress, report_progress
from .threads import use_session

__all__ = ["LogProgress", "NsqDataSource", "report_progress", "use_session"]
