"""Publishing to a replica group: finding its primary, following it, and repeating what was not stored."""

from .group_publisher import GroupPublisher
from .members import GroupMembers

__all__ = ["GroupMembers", "GroupPublisher"]
