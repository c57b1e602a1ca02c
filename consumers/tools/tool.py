"""Tool: what a model may call, as it was declared: its description, its arguments, and what is known of its effect.

Owns the declaration and what is refused in it, and reading a model's arguments. A tool is a function of the app
(`function_tool`) or a request to another agent (`handoff_tool`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, get_args

import msgspec

from bus.errors import ConfigurationError, ContractError
from bus.nearest import nearest
from bus.payloads.kept_values import KeptType, kept_type, plain_of, with_floats
from bus.protocol import canonical
from bus.protocol.authority_globs import first_outside
from bus.schemas.tool_rules import strict_faults, tool_faults
from bus.schemas.tool_schemas import first_unknown, plain_schema, strict_schema, without_nulls
from bus.trust.labels import LEVELS, SIDE_EFFECTS, rank_of_level
from consumers.delivery.context import Context
from consumers.delivery.inbox.remembered_steps import MAX_STEP_BYTES
from consumers.processes.approvals.approval import Approval

__all__ = ["Tool", "ToolEffect", "ToolTerms", "check_answer", "check_storable"]

ToolEffect = Literal["none", "read", "write", "external", "irreversible"]
_OUTPUTS: Final = tuple(level for level in LEVELS if rank_of_level(level) >= rank_of_level("trusted_tool_result"))


class ToolTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared of a tool beside its function. Raises ConfigurationError for what cannot be."""

    side_effect: ToolEffect = "read"
    approval: Approval | None = None
    can_execute: str = ""
    output: str | None = "untrusted_content"
    """The trust level of what it returns; None: what is stated by the answers that it receives."""
    once: bool = False
    reconcile: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        _check_word("side_effect", self.side_effect, get_args(ToolEffect))
        if self.output is not None:
            _check_word("output", self.output, _OUTPUTS)
        if self.approval is not None and not isinstance(self.approval, Approval):
            raise ConfigurationError(f"approval is {type(self.approval).__name__}: write approval=Approval(by='human')")
        if not isinstance(self.can_execute, str) or "*" in self.can_execute:
            raise ConfigurationError(
                f"can_execute is {self.can_execute!r:.80}: write what the tool executes without stars, as in 'git push'"
            )
        if not isinstance(self.once, bool):
            raise ConfigurationError(f"once is {self.once!r}: write once=True")
        if self.reconcile is not None and not (self.once and callable(self.reconcile)):
            raise ConfigurationError("reconcile is a function, and needs once=True: it looks whether the tool has run")


class Tool:
    """One tool. *arguments* is the class of its arguments, as msgspec describes it; *kept* reads them.

    Raises ConfigurationError for a tool that a provider of models would refuse.
    """

    sends: tuple[type[Any], ...] = ()
    """The payload classes that it sends."""

    def __init__(
        self, name: str, description: str, arguments: Any, terms: ToolTerms, kept: KeptType | None = None
    ) -> None:
        if not isinstance(name, str) or not isinstance(description, str):
            raise ConfigurationError(f"name and description of a tool are texts, not {name!r:.80}")
        self.name = name
        self.description = description
        self.terms = terms
        try:
            self.schema: dict[str, Any] = plain_schema(arguments)
            """The JSON Schema of the arguments: an object, without references."""
            self._arguments = kept or kept_type(arguments)
        except ContractError as error:
            raise ConfigurationError(f"the tool {name!r:.80}: {error}") from error
        except (TypeError, NotImplementedError) as error:
            raise ConfigurationError(f"the tool {name!r:.80}: an argument has no JSON form: {error}") from error
        if faults := tool_faults(name, description, self.schema):
            raise ConfigurationError(f"the tool {name!r:.80} would be refused: {'; '.join(faults)}")

    @cached_property
    def strict_schema(self) -> dict[str, Any] | None:
        """The schema for strict modes: all required, nothing else allowed; None if it has no such form."""
        return None if self.why_not_strict else strict_schema(self.schema)

    @cached_property
    def why_not_strict(self) -> str:
        """Why the tool has no strict form; empty if it has one."""
        try:
            return "; ".join(strict_faults(strict_schema(self.schema)))
        except ContractError as error:
            return str(error)

    def read(self, arguments: object) -> tuple[dict[str, Any], Any]:
        """Return *arguments* as a model wrote them in plain JSON values, and as values of their classes.

        Text is read as JSON. Raises ContractError with the pointer of what is wrong.
        """
        plain = with_floats(_plain(arguments))
        if not isinstance(plain, dict):
            raise ContractError("the arguments are a JSON object", "", "schema_violation")
        plain = without_nulls(plain, self.schema)
        if (fault := first_unknown(plain, self.schema)) is not None:
            raise fault
        check_storable(plain)
        return plain, self._arguments.read(plain)

    def refusal(self, granted: Mapping[str, Any]) -> str | None:
        """Return why the authority *granted* to the run does not cover this tool; None if it does."""
        most = granted.get("max_side_effect")
        if most in SIDE_EFFECTS and SIDE_EFFECTS.index(self.terms.side_effect) > SIDE_EFFECTS.index(most):
            return f"its side effect is {self.terms.side_effect}, and the message allows at most {most}"
        wanted = self.terms.can_execute
        if not wanted:
            return None
        if _is_within(wanted, granted.get("cannot_execute", ())):
            return f"the message forbids to execute {wanted!r}"
        if "can_execute" in granted and not _is_within(wanted, granted["can_execute"]):
            return f"the message does not allow to execute {wanted!r}"
        return None

    def needs_person(self, granted: Mapping[str, Any]) -> bool:
        """Tell whether the authority *granted* to the run lets a person decide about this tool."""
        wanted = self.terms.can_execute
        return bool(wanted) and _is_within(wanted, granted.get("requires_human_approval", ()))

    def function(self, context: Context) -> Callable[..., Any]:
        """Return the function to call with plain arguments by name; what it returns has a JSON form."""
        raise NotImplementedError

    async def reconciled(self, plain: dict[str, Any]) -> Any:
        """Return what `reconcile=` finds of a call with these arguments that has begun, in plain JSON values."""
        raise NotImplementedError

    def level(self, context: Context) -> str:
        """Return the trust level of what the tool has returned to this run."""
        return self.terms.output or context.labels.level


def check_storable(arguments: Any) -> None:
    """Raise ContractError, with the pointer, for arguments that cannot be kept and shown: a model is told."""
    size = len(canonical.encode(plain_of(arguments)))
    if size > MAX_STEP_BYTES:
        raise ContractError(f"the arguments take {size} bytes, at most {MAX_STEP_BYTES} are accepted")


def check_answer(plain: Any) -> None:
    """Raise ContractError for the result of a tool, in plain JSON values, that no model could be given."""
    try:
        msgspec.json.encode(plain)
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start])
        raise ContractError(f"the result has a lone surrogate, {found}, which is not Unicode text") from error
    except (TypeError, RecursionError):
        # What is kept of it, and whether, is decided where it is kept.
        return


def _is_within(text: str, globs: Sequence[str]) -> bool:
    return first_outside([text], globs) is None


def _check_word(name: str, word: object, choices: tuple[str, ...]) -> None:
    if word not in choices:
        raise ConfigurationError(f"{name} {word!r:.80} is none of {', '.join(choices)}{nearest(str(word), choices)}")


def _plain(arguments: object) -> Any:
    if isinstance(arguments, str | bytes):
        try:
            return msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ContractError(f"the arguments are not JSON: {error}", "", "schema_violation") from error
    return plain_of(arguments)
