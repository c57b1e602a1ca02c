"""A byte order mark, which editors on Windows write, is a mark of a file and no part of what the file says."""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from bus.byte_lines import read_lines
from bus.trust.keys.key_folder import KeyFolder
from bus.trust.keys.private_keys import read_private_key
from bus.trust.policy.cases import parse_cases
from bus.trust.policy.file import parse_policy
from consumers.agents.workflows.definition import read_workflow
from consumers.operations.console.access import read_tokens

WORKFLOW = Path(__file__).parents[1] / "consumers" / "agents" / "workflows" / "market_research.json"


def marked(path: Path) -> Path:
    """Put the mark before the content of *path*."""
    path.write_bytes(BOM_UTF8 + path.read_bytes())
    return path


def test_in_a_policy_and_its_cases() -> None:
    text = b'[[agents]]\nid = "shop@svc"\n'
    plain = parse_policy(text, name="p")
    assert parse_policy(BOM_UTF8 + text, name="p").sha256 == plain.sha256
    cases = BOM_UTF8 + b"cases = []\n"
    assert parse_cases(cases, name="c", kind_of=lambda _: None, namespace="agents", now_ms=0) == []


def test_in_keys(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    made = keys.add("shop@svc", principals=["shop@svc"], types=[], not_before_ms=0)
    marked(keys.jwks)
    assert set(keys.directory().keys) == {made.kid}
    assert read_private_key(marked(keys.private_file("shop@svc"))).kid == made.kid


def test_in_tokens_and_workflows(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(f'[alice]\nsha256 = "{"0" * 64}"\nscopes = []\n')
    assert [token.name for token in read_tokens(marked(tmp_path / "tokens.toml"))] == ["alice"]
    (tmp_path / "flow.json").write_bytes(WORKFLOW.read_bytes())
    assert read_workflow(tmp_path / "flow.json") == read_workflow(marked(tmp_path / "flow.json"))


@pytest.mark.parametrize("size", [1, 2, 100])
def test_in_lines_however_they_come(size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            return super().read(size)

    lines = read_lines(Slow(BOM_UTF8 + b"{}\n" + BOM_UTF8 + b"{}\n"), 100)
    assert [line.content for line in lines] == [b"{}", BOM_UTF8 + b"{}"]
