"""Errors of model providers, as decisions about the message. Pure.

Owns telling what an error of any client library means: whether to wait, for how long, or to give up. Libraries agree on
an attribute `status_code`, and on `response.headers`; none is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bus.errors import DependencyDown, HandlerError, Reject, text_of

__all__ = ["provider_fault"]

_BUSY: Final = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_REFUSED: Final = frozenset({401, 402, 403})
_GIVEN_UP: Final = frozenset({400, 413, 422})
_UNREACHABLE: Final = frozenset(
    {"APIConnectionError", "APITimeoutError", "ConnectError", "ConnectTimeout", "ReadTimeout"}
)
_FINAL: Final = frozenset(
    {"GraphRecursionError", "InputGuardrailTripwireTriggered", "MaxTurnsExceeded", "ModelBehaviorError"}
    | {"ModelRefusalError", "OutputGuardrailTripwireTriggered", "ToolInputGuardrailTripwireTriggered"}
    | {"ToolOutputGuardrailTripwireTriggered", "UnexpectedModelBehavior", "UsageLimitExceeded"}
)
"""How frameworks call ends that a repetition would only repeat, because its steps answer the same."""
_MAX_DEPTH: Final = 8


def provider_fault(error: BaseException, provider: str) -> HandlerError | None:
    """Return the decision that *error* of *provider* is; None if it is no error of a provider.

    Rate limits, overload and outages wait without an attempt, and so do refused credentials. A context that is too
    long and content that is refused end the message, with the provider's code.
    """
    for each in _chain(error):
        if isinstance(each, HandlerError):
            return each
        status = _status_of(each)
        if status in _BUSY:
            return DependencyDown(provider, f"HTTP {status}: {text_of(each)[:200]}")
        if status in _REFUSED:
            return DependencyDown(f"{provider} credentials", f"HTTP {status}: {text_of(each)[:200]}")
        if status in _GIVEN_UP:
            return Reject(
                f"{provider} refused the request, {_code_of(each) or f'HTTP {status}'}: {text_of(each)[:200]}"
            )
        if type(each).__name__ in _UNREACHABLE:
            return DependencyDown(provider, text_of(each)[:200])
        if type(each).__name__ in _FINAL:
            return Reject(f"{type(each).__name__}: {text_of(each)[:200]}")
        if type(each).__name__ == "ContentFilterError":
            return Reject(f"{provider} refused the content: {text_of(each)[:200]}")
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(_MAX_DEPTH):
        if found is None:
            return
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _status_of(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def _code_of(error: BaseException) -> str:
    """Return the provider's own code, such as `context_length_exceeded`."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    found: Any = getattr(error, "code", None)
    if not isinstance(found, str) and isinstance(inner, Mapping):
        found = inner.get("code") or inner.get("type")
    return found[:100] if isinstance(found, str) else ""
