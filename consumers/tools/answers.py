"""ToolAnswer: what a call of a tool came to, as a value for the program and as text for the model. Pure.

Owns the text that a model gets, and how outside text is framed in it. A replay gives the same text, so the frame is
derived from what it frames: a text cannot contain the hash of itself.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bus.redaction import cut
from bus.trust.labels import rank_of_level
from bus.trust.untrusted import Untrusted, untrusted_texts

__all__ = ["FRAMED_FROM", "ToolAnswer", "ToolFault", "framed"]

FRAMED_FROM: Final = "model_generated"
"""The most trusted level whose texts are framed for a model."""
_MAX_FAULT: Final = 2000


class ToolFault(msgspec.Struct, frozen=True):
    """Why a call has no result; the model is told, and the run goes on.

    *code* is `unknown_tool`, `wrong_arguments`, `unauthorized`, another reason of `ApprovalRefused`, or `failed`: the
    tool raised an error. *pointer* names the argument at fault.
    """

    code: str
    message: str
    pointer: str = ""


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool returned, or why it returned nothing.

        answer = await app.tools.call(name, arguments, context)
        messages.append({"role": "tool", "content": answer.text})

    *raw* is the result in plain JSON values, None with a *fault*. *level* is its trust level.
    """

    tool: str
    raw: Any = None
    fault: ToolFault | None = None
    level: str = "trusted_tool_result"
    seed: str = ""
    """What the frame of the text is derived from, beside the text."""

    @property
    def is_outside(self) -> bool:
        """Whether the result is text from outside: `output` has it as `Untrusted`, and `text` frames it."""
        return rank_of_level(self.level) >= rank_of_level(FRAMED_FROM)

    @property
    def output(self) -> Any:
        """The result; each text in it is `Untrusted` where the tool's `output=` says that it comes from outside."""
        return untrusted_texts(self.raw, self.level, f"tool:{self.tool}") if self.is_outside else self.raw

    @property
    def text(self) -> str:
        """What the model gets: the result, or the fault. Text from outside is framed as data."""
        if self.fault is None:
            plain = self.raw if isinstance(self.raw, str) else msgspec.json.encode(self.raw).decode()
            return framed(plain, self.level, f"tool:{self.tool}", seed=self.seed) if self.is_outside else plain
        where = f" at {self.fault.pointer}" if self.fault.pointer else ""
        said = cut(self.fault.message, _MAX_FAULT)
        if self.fault.code == "failed":
            # A tool's error may hold what it has read.
            said = framed(said, self.level, f"tool:{self.tool}", seed=self.seed) if self.is_outside else said
        return f"error {self.fault.code}{where}: {said}"


def framed(text: str, level: str, source: str, *, seed: str) -> str:
    """Return *text* as `Untrusted.quoted` shows it, the same for the same text and *seed*."""
    return Untrusted(text, level=level, source=source).quoted(_derived(f"{seed}\n{source}\n{text}"))


def _derived(seed: str) -> Callable[[int], bytes]:
    """Return a source of bytes that looks random to whoever does not know all of *seed*."""
    rounds = itertools.count()

    def draw(size: int) -> bytes:
        return hashlib.shake_256(f"{next(rounds)}\n{seed}".encode(errors="surrogatepass")).digest(size)

    return draw
