"""A bus line, in a folder of the user's that has a name like one of ours."""

from __future__ import annotations

STOPS = ("north", "south")
