"""The progress of streaming queries, told to the nsqds that they read."""

from .listener import ProgressListener, report_progress
from .log_progress import LogProgress

__all__ = ["LogProgress", "ProgressListener", "report_progress"]
