"""The exported TypeScript accepts and refuses what sealbus accepts and refuses, compiled and run by Node."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from bus.payloads.payload_types import PayloadType, payload, payload_type
from bus.payloads.rules import Has, Is, Rule, when
from bus.schemas.typescript import typescript_of
from bus.vocabulary import BUILT_IN
from tests.bus.schemas.cases import cases_of
from tests.node_tools import node_project, run

JUDGE = """
import { types } from "./sealbus.js";
import { readFileSync } from "node:fs";
for (const line of readFileSync(0, "utf8").split("\\n").filter(Boolean)) {
  const { type, data } = JSON.parse(line);
  console.log(types[type].data.safeParse(data).success);
}
"""
OPTIONS = {
    "compilerOptions": {
        "target": "es2022", "module": "nodenext", "strict": True, "noUncheckedIndexedAccess": True,
        "noImplicitReturns": True, "skipLibCheck": True,
    },
    "files": ["sealbus.ts"],
}  # fmt: skip


@payload("tree.node", rules=(Rule("a leaf has a value", "/value", when(Is("kind", ("leaf",)), Has("value"))),))
class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A type that contains itself, and fields that differ from their names in data."""

    kind: Literal["leaf", "branch"]
    value: Annotated[float, Meta(ge=0)] | None = None
    children: tuple[Tree, ...] = ()
    size: Annotated[int, Meta(ge=0)] = msgspec.field(name="nodeSize", default=0)
    labels: dict[str, tuple[str, int]] = {}


class Compiled:
    """The exported module of some types, compiled, in a folder of its own."""

    def __init__(self, kinds: list[PayloadType]) -> None:
        self.kinds = kinds
        self.folder = Path(tempfile.mkdtemp(dir=node_project()))
        (self.folder / "sealbus.ts").write_text(typescript_of(kinds))
        (self.folder / "tsconfig.json").write_text(json.dumps(OPTIONS))
        (self.folder / "judge.mjs").write_text(JUDGE)
        run("node", "../node_modules/typescript/bin/tsc", "-p", ".", cwd=self.folder)

    def accepts(self, cases: list[tuple[str, object]]) -> list[bool]:
        lines = "\n".join(json.dumps({"type": name, "data": data}) for name, data in cases)
        return [line == "true" for line in run("node", "judge.mjs", cwd=self.folder, stdin=lines).split()]


@pytest.fixture(scope="module")
def vocabulary() -> Compiled:
    return Compiled(list(BUILT_IN))


@pytest.mark.medium
def test_the_vocabulary_is_judged_alike_over_two_thousand_cases(vocabulary: Compiled) -> None:
    chance = random.Random(2026)
    cases = [(kind.name, data, accepted) for kind in vocabulary.kinds for data, accepted in cases_of(kind, 25, chance)]
    assert len(cases) > 2_000
    verdicts = vocabulary.accepts([(name, data) for name, data, _ in cases])
    differing = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict != case[2]]
    assert differing == []
    assert 0.2 < sum(verdicts) / len(verdicts) < 0.8


@pytest.mark.medium
def test_a_type_of_a_user_is_judged_alike() -> None:
    kind = payload_type(Tree)
    compiled = Compiled([kind])
    cases = cases_of(kind, 300, random.Random(7))
    verdicts = compiled.accepts([("tree.node", data) for data, _ in cases])
    assert verdicts == [accepted for _, accepted in cases]
    assert True in verdicts
    assert False in verdicts
