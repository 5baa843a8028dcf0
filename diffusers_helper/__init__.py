"""FramePack video generation as a library. Importing it has no effect; its modules hold the functions."""

__version__ = "0.1.0"
