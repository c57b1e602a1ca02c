"""What a payload of each form costs: `python tests/benchmarks/payload_forms.py`.

The report of the other benchmarks, 1,036 bytes in canonical form, as a Struct, a dataclass, a TypedDict and a Pydantic
model. Prints how many are encoded and decoded in a second of processor time, each the best of five runs, and fails
where a form writes other bytes.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import msgspec
import pydantic
from speed import payloads

from bus.payloads.payload_types import payload, payload_type

_COUNT = 2_000
_RUNS = 5
_NAME = "bench.report"


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "payloads"
        payloads.write_payloads(path, _COUNT)
        bodies = payloads.bodies(str(path), _COUNT)
    print(f"{'form':<16}{'encoded in a second':>22}{'decoded in a second':>22}")
    for form, cls in _classes().items():
        kind = payload_type(cls)
        reports = [kind.decode(body) for body in bodies]
        if [kind.encode(report) for report in reports] != bodies:
            raise SystemExit(f"{form}: its bytes differ")
        print(f"{form:<16}{_rate(kind.encode, reports):>22,.0f}{_rate(kind.decode, bodies):>22,.0f}")


def _rate(work: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return how many *items* are done in a second."""
    best = float("inf")
    for _ in range(_RUNS):
        begun = time.process_time()
        for item in items:
            work(item)
        best = min(best, time.process_time() - begun)
    return len(items) / best


def _classes() -> dict[str, Any]:
    return {
        "Struct": payloads.Report,
        "dataclass": payload(_NAME)(_made(payloads.Report, _dataclass)),
        "TypedDict": payload(_NAME)(_made(payloads.Report, _typed_dict)),
        "Pydantic model": payload(_NAME)(_made(payloads.Report, _model)),
    }


def _made(struct: Any, form: Callable[[str, dict[str, Any]], Any]) -> Any:
    """Return a class of *form* with the fields of *struct*, and its parts of the same form."""
    hints = {field.name: _hint(field.type, form) for field in msgspec.structs.fields(struct)}
    return form(struct.__name__, hints)


def _hint(hint: Any, form: Callable[[str, dict[str, Any]], Any]) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _made(hint, form)
    arguments = tuple(_hint(part, form) for part in getattr(hint, "__args__", ()))
    return hint.__origin__[arguments] if arguments and hasattr(hint, "__origin__") else hint


def _dataclass(name: str, hints: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass(name, list(hints.items()), frozen=True, kw_only=True)


def _typed_dict(name: str, hints: dict[str, Any]) -> Any:
    return TypedDict(name, hints)  # type: ignore[operator]


def _model(name: str, hints: dict[str, Any]) -> Any:
    return pydantic.create_model(name, **{field: (hint, ...) for field, hint in hints.items()})  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
