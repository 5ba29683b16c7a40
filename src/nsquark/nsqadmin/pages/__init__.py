"""The pages of nsqadmin, rendered on the server: `Pages(cluster).routes()` is what a server mounts."""

from .routes import Pages

__all__ = ["Pages"]
