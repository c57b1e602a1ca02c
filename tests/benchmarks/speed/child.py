"""The measuring process: one task in (as JSON, the only argument), one line of JSON out.

Owns the way from a task to the function that measures it, and the processor it is bound to. Run by `speed.runner`,
never by people.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from importlib import import_module
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from speed.catalog import VARIANTS
from speed.measurement import Answer, Task, pin


def measure(task: Task) -> Answer:
    """What the function of the task's variant answers."""
    if task.variant.startswith("fill"):
        name, options = "sealbus_publish:fill", {"idempotent": task.variant == "fill-keyed"}
    else:
        name, options = next(variant.function for variant in VARIANTS if variant.id == task.variant), {}
    module, _, function = name.partition(":")
    answer = getattr(import_module(f"speed.{module}"), function)(task, **options)
    result: Answer = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    return result


def main() -> None:
    """Measure what the argument asks for."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    pinned = pin(task.cpu)
    answer = measure(task)
    answer.pinned = pinned
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()
    # What was measured is over: how long a library takes to end, or that it cannot, is not asked.
    os._exit(0)


if __name__ == "__main__":
    main()
