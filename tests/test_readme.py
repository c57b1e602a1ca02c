"""The program in the README is a program: it runs as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_agent_of_the_readme_passes_its_own_test(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(# agent\.py\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 1
    program = blocks[0] + "\nimport asyncio\nasyncio.run(test_research())\n"
    (tmp_path / "agent.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
