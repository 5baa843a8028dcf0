"""Threads of the product, by their names."""

import threading


def join_threads(name: str) -> None:
    """Wait until all threads of this name have ended."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(20)
            assert not thread.is_alive()
