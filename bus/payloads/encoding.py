"""A payload's canonical data: encoding payloads of one class.

Owns the choice between the two ways to the same bytes: one compiled step (`bus.payloads.encoder_plan`), and the exact
way, which is the specification and names the field that receivers would refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from bus.errors import ContractError, text_of
from bus.payloads.class_forms import ClassForm
from bus.payloads.encoder_plan import compile_encoder
from bus.protocol import canonical
from bus.protocol.envelope import DATA_DEPTH, DATA_ROOM

__all__ = ["Encoder"]

_Decode: TypeAlias = Callable[[bytes], Any]


class Encoder:
    """Encodes payloads of the class with this *form*.

    *decode* raises ContractError for data that receivers would refuse, *read* is the decoder of that class itself.
    *check* raises ContractError for values that JSON cannot carry.
    Without *read* nothing is known of the class yet, and it goes the exact way.
    """

    __slots__ = ("_check", "_check_again", "_decode", "_plain", "compiled")

    def __init__(
        self,
        form: ClassForm,
        decode: _Decode,
        read: _Decode | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._decode = decode
        self._plain = form.plain
        self._check = check
        self._check_again = form.check_again
        self.compiled: Any = None if read is None else compile_encoder(form.cls, read, DATA_ROOM)
        """Encodes most payloads in one step and says None of the others; None where nothing is compiled, or not for
        this class."""

    def encode(self, subject: Any) -> bytes:
        """Return canonical data of *subject*. Raises ContractError naming the field that receivers would refuse.

        Most constructors check nothing, so the exact way decodes what it wrote by the subject's own type.
        """
        if self.compiled is not None:
            written: bytes | None = self.compiled.encode(subject)
            if written is not None:
                return written
        data = self._encode_exactly(subject)
        self._check_again(subject, self._decode(data))
        return data

    def _encode_exactly(self, subject: Any) -> bytes:
        if isinstance(subject, type):
            raise ContractError(
                f"{subject.__qualname__} is a class: give an instance of it", "/data", "schema_violation"
            )
        if self._check is not None:
            self._check(subject)
        try:
            return canonical.encode(self._plain(subject), depth=DATA_DEPTH)
        except ContractError as error:
            if (data := self._encode_keyed(subject)) is not None:
                return data
            raise ContractError(error.text, f"/data{error.pointer}", "schema_violation") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise ContractError(f"cannot be written as JSON: {text_of(error)}", "/data", "schema_violation") from error

    def _encode_keyed(self, subject: Any) -> bytes | None:
        """Write keys that are not strings as strings, if all of them can be read back."""
        try:
            data = canonical.encode(self._plain(subject, str_keys=True), depth=DATA_DEPTH)
            again = self._decode(data)
            # By what would be written, with keys as they are: a tuple is as good as a list, and not every class can be
            # compared.
            return data if again == subject or _listed(self._plain(again)) == _listed(self._plain(subject)) else None
        except (ContractError, TypeError, ValueError, RecursionError):
            return None


def _listed(plain: object) -> object:
    """*plain* with lists for tuples."""
    if isinstance(plain, dict):
        return {key: _listed(value) for key, value in plain.items()}
    return [_listed(item) for item in plain] if isinstance(plain, list | tuple) else plain
