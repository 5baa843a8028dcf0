"""A library for video generation with FramePack. Importing it has no effect."""

__version__ = "0.2.0"
