"""Schema versions in their order (SemVer 2.0, `x.y.z`): 1.10.0 comes after 1.2.0. Pure."""

from __future__ import annotations

from typing import NamedTuple

from bus.errors import ContractError
from bus.protocol.identifiers import is_schema_version

__all__ = ["SchemaVersion"]


class SchemaVersion(NamedTuple):
    """A version, which compares by its numbers."""

    major: int
    minor: int
    patch: int

    @classmethod
    def of(cls, text: str) -> SchemaVersion:
        """Parse *text*; raise ContractError unless it is `x.y.z`."""
        if not is_schema_version(text):
            raise ContractError(f"{text!r:.80} is not a valid schema version: use x.y.z without leading zeros")
        return cls(*map(int, text.split(".")))

    def after(self, bump: str) -> SchemaVersion:
        """Return the least version that is a *bump* ("major", "minor" or "patch") above this one."""
        if bump == "major":
            return SchemaVersion(self.major + 1, 0, 0)
        if bump == "minor":
            return SchemaVersion(self.major, self.minor + 1, 0)
        return SchemaVersion(self.major, self.minor, self.patch + 1)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"
