"""The values of `${...}` in a workflow. Pure: time and randomness are arguments.

A reference in the definition is replaced once by a JSON value. References are not allowed in keys, receivers, types,
performatives or ids, and are not replaced inside answers (security S35). `${name}` is a variable;
`${nodes.plan.summary}` is a member of the answer to node `plan`, and adds that answer's trust level.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bus.errors import ContractError

__all__ = ["BUILT_IN_VARIABLES", "filled", "initial_variables", "references", "uses_answers"]

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][\w.-]*)\}")
_ANSWERS: Final = "nodes."
BUILT_IN_VARIABLES: Final = ("ISO_DATE", "ISO_TIME", "RAND", "WORKFLOW_ID")


def initial_variables(
    defined: Mapping[str, Any], provided: Mapping[str, Any], *, now_ms: int, entropy: bytes, workflow_id: str
) -> dict[str, Any]:
    """Return the variables of one run, computed once: *defined* ones, overridden by *provided* ones, and the built-in
    ones.

    Raises ContractError for a provided variable that is not defined, or one that refers to a missing variable.
    """
    if unknown := sorted(set(provided) - set(defined)):
        raise ContractError(f"the workflow has no variable {unknown[0]!r}", f"/variables/{unknown[0]}")
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    found: dict[str, Any] = {
        "ISO_DATE": moment.date().isoformat(),
        "ISO_TIME": moment.isoformat(timespec="seconds"),
        "RAND": entropy.hex()[:8],
        "WORKFLOW_ID": workflow_id,
    }
    for name, value in defined.items():
        # What is given is a value, in which nothing is replaced.
        found[name] = provided[name] if name in provided else filled(value, found, {}, f"/variables/{name}")
    return found


def filled(value: Any, variables: Mapping[str, Any], answers: Mapping[str, Any], pointer: str = "") -> Any:
    """Return *value* with its references replaced; what they stand for is not looked into again.

    Raises ContractError for a reference to nothing.
    """
    if isinstance(value, str):
        return _filled_text(value, variables, answers, pointer)
    if isinstance(value, Mapping):
        return {name: filled(each, variables, answers, f"{pointer}/{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [filled(each, variables, answers, f"{pointer}/{at}") for at, each in enumerate(value)]
    return value


def references(value: Any) -> Iterator[str]:
    """Yield the names that *value* refers to, however deep."""
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from references(each)


def uses_answers(value: Any) -> bool:
    """Tell whether anything of an answer is in *value*."""
    return any(name.startswith(_ANSWERS) for name in references(value))


def _filled_text(text: str, variables: Mapping[str, Any], answers: Mapping[str, Any], pointer: str) -> Any:
    whole = _REFERENCE.fullmatch(text)
    if whole is not None:
        return _value_of(whole[1], variables, answers, pointer)

    def shown(found: re.Match[str]) -> str:
        value = _value_of(found[1], variables, answers, pointer)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return _REFERENCE.sub(shown, text)


def _value_of(name: str, variables: Mapping[str, Any], answers: Mapping[str, Any], pointer: str) -> Any:
    if not name.startswith(_ANSWERS):
        if name not in variables:
            raise ContractError(f"no variable {name!r}", pointer, "schema_violation")
        return variables[name]
    node, *path = name.removeprefix(_ANSWERS).split(".")
    if node not in answers:
        raise ContractError(f"the node {node!r} has not been answered", pointer, "schema_violation")
    value: Any = answers[node]
    for step in path:
        if not isinstance(value, Mapping) or step not in value:
            raise ContractError(f"the answer to {node!r} has no {'.'.join(path)}", pointer, "schema_violation")
        value = value[step]
    return value
