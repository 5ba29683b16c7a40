"""The package by which Spark finds the data source.

Spark imports every top-level package named `pyspark_…` and registers its `DefaultSource`.
"""

from nsquark.spark import NsqDataSource

DefaultSource = NsqDataSource

__all__ = ["DefaultSource", "NsqDataSource"]
