"""The server side of clusterwatch; each folder is a room of ARCHITECTURE.md."""

from collectors import __version__

__all__ = ["__version__"]
