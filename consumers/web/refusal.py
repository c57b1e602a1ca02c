"""HttpRefusal: why a request is not answered as asked, in the one form that every door has (design part three 24).

`{"status": "error", "code", "class", "pointer", "message"}`; the HTTP status is that of the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.errors import ContractError
from bus.redaction import cut
from bus.telemetry.terminal import printable
from bus.vocabulary.error_codes import lookup

__all__ = ["HttpRefusal", "of_contract"]

_MAX_TEXT: Final = 200
_MAX_HINT: Final = 600


class HttpRefusal(Exception):  # noqa: N818 - a verdict
    """A request is refused.

    *text* is the bus's own, *foreign* what it quotes: at most 200 characters of it, without control characters.
    """

    def __init__(
        self,
        code: str,
        text: str,
        *,
        pointer: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = printable(cut(text, _MAX_HINT))
        self.pointer = printable(cut(pointer, _MAX_TEXT))
        self.status = lookup(code).http_status if status is None else status
        self.retry_after_s = retry_after_s
        self.more = more
        self._headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        return {
            "status": "error",
            "code": self.code,
            "class": lookup(self.code).error_class,
            "pointer": self.pointer,
            "message": self.text,
            **(self.more or {}),
        }

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to it."""
        found = {**self._headers, "cache-control": "no-store"}
        if self.retry_after_s is not None:
            found["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:  # noqa: PLR2004 - RFC 9110 asks for it
            found["www-authenticate"] = 'Bearer realm="sealbus", Basic realm="sealbus"'
        return found

    def encoded(self) -> bytes:
        """Return the answer's bytes."""
        return msgspec.json.encode(self.body())


def of_contract(error: ContractError, *, prefix: str = "") -> HttpRefusal:
    """Return the refusal of what *error* says is wrong; *prefix* is put before its pointer."""
    return HttpRefusal(error.reason or "schema_violation", error.text, pointer=f"{prefix}{error.pointer}")
