"""Spark imports every top-level package named `pyspark_…` and takes its `DefaultSource`: this is ours."""

from nsquark.spark import NsqDataSource

DefaultSource = NsqDataSource

__all__ = ["DefaultSource", "NsqDataSource"]
