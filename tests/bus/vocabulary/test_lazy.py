"""What is not used of the vocabulary is not imported, and a type is analysed when it is first used."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from bus.vocabulary import FAMILIES
from sealbus import App, vocabulary

app = App("coder@svc")

@app.on(vocabulary.TaskRequest)
async def work(task: vocabulary.TaskRequest) -> vocabulary.TaskResult: ...

@app.on(vocabulary.ToolCall)
async def call(tool: vocabulary.ToolCall) -> None: ...

loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("bus.vocabulary.")}
print(*sorted(loaded & set(FAMILIES)))
"""


def test_a_worker_of_three_types_loads_their_families_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # The bus itself reports errors; which agents are there is said by a worker at work.
    assert done.stdout.split() == ["error", "task", "tool"]


def test_unused_vocabulary_families_are_not_imported() -> None:
    program = "import sys; from sealbus import vocabulary, connect, App; print('bus.vocabulary.swe' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
