"""The one line of an error report of Spark that tells what went wrong."""

from __future__ import annotations

from ..flags.options import with_flag_names


def one_line(error: BaseException) -> str:
    """One line for an error that Spark raised, with flags in place of options."""
    from nsquark.spark.errors import telling_line  # which imports Spark

    return with_flag_names(telling_line(str(error))) or type(error).__name__
