"""FramePack video generation as a library. Importing it does nothing; take what you need from its modules."""

__version__ = "0.1.0"
