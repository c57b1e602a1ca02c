"""Bodies of requests, read as strictly as messages: no duplicate members, no inexact numbers, 64 levels. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from bus.dialects.strict_json import read_object
from bus.errors import ContractError
from bus.protocol.validation_errors import translate
from consumers.web.refusal import HttpRefusal

__all__ = ["strict_body"]

_Body = TypeVar("_Body", bound=msgspec.Struct)


def strict_body(body: bytes, kind: type[_Body]) -> _Body:
    """Return *body* as a *kind*. Raises HttpRefusal with the pointer of the first fault."""
    try:
        return msgspec.convert(read_object(body), kind)
    except msgspec.ValidationError as error:
        found = translate(error, base="", reason="malformed")
        raise HttpRefusal("INVALID_MESSAGE", found.text, pointer=found.pointer) from None
    except ContractError as error:
        raise HttpRefusal("INVALID_MESSAGE", error.text, pointer=error.pointer) from None
