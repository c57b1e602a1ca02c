"""Find the known name nearest to a misspelt one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; the nearest is X` for an error message, or an empty text."""
    import difflib

    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; the nearest is {found[0]}" if found else ""
