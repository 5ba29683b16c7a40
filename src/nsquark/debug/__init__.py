"""What an operator needs to look into a running daemon: `/debug`, for every daemon that has an HTTP port."""

from .routes import add_debug_routes

__all__ = ["add_debug_routes"]
