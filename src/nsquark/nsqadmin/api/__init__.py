"""NSQ's HTTP API of nsqadmin: `/api`, `/config`, `/ping` and `/render`."""

from .routes import routes

__all__ = ["routes"]
