"""NSQ on a durable log. The packages inside are imported by name; this door shows the version alone."""

from nsquark.version import VERSION as __version__

__all__ = ["__version__"]
