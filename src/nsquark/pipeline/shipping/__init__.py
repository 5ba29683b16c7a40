"""What executors get to run if nsquark is not installed there: a zip of modules, or a whole environment."""

from .environment import write_environment
from .files import archive_kind, is_environment
from .library import write_library
from .settings import ship, use_python_of_executors

__all__ = [
    "archive_kind",
    "is_environment",
    "ship",
    "use_python_of_executors",
    "write_environment",
    "write_library",
]
