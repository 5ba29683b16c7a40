"""Tables that hold each batch of a query once: Delta, Iceberg, and Parquet files with manifests."""

from .delta import DeltaCommits
from .exact_table import ExactTable
from .iceberg import IcebergCommits
from .manifest_commits import ManifestCommits
from .manifests import dataset, listed_files

__all__ = ["DeltaCommits", "ExactTable", "IcebergCommits", "ManifestCommits", "dataset", "listed_files"]
