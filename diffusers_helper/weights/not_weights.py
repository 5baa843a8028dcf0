"""The recognition of files that are found in place of weights, such as web pages or pointers."""

from __future__ import annotations

import re

from diffusers_helper.units import gb_text

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = re.compile(
    rb"\s*(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype|html|head|\?xml)", re.IGNORECASE | re.DOTALL
)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_AGAIN = "download it again."


def is_page(start: bytes) -> bool:
    """Return whether a file with these first bytes is a web page."""
    return _PAGE.match(start) is not None


def foreign_content(start: bytes) -> str:
    """Return what kind of file this is, as the end of a sentence that begins with the file's name.

    Args:
        start: The first bytes of the file.
    """
    if not start:
        return f"is empty; {_AGAIN}"
    if start.startswith(_POINTER):
        size = re.search(rb"^size (\d{1,15})$", start, re.MULTILINE)
        what = f"{gb_text(int(size[1]))} GB of weights" if size else "weights"
        return f"is a Git LFS pointer to {what}, not the weights; run `git lfs pull` there, or {_AGAIN}"
    if is_page(start):
        title = _TITLE.search(start)
        words = " ".join(title[1].decode("utf-8", "replace").split())[:80] if title else ""
        named = f' ("{words}")' if words else ""
        return f"is a web page{named}, not weights: the server answered the download with it; {_AGAIN}"
    if start.lstrip()[:1] in (b"{", b"["):
        return f"is a JSON text, not weights; give the file with the weights, or {_AGAIN}"
    if not start.strip(b"\0"):
        return f"begins with zeros, like an interrupted download; {_AGAIN}"
    return (
        "is not a file with weights: it is neither safetensors, GGUF nor a checkpoint of torch; "
        "give another file."
    )
