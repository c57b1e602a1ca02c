"""The files of a new project.

Owns which files a choice of template and extras has, and the values that are filled in. Does not write them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Set
from importlib import resources
from typing import Final, NamedTuple

from consumers.scaffold.names import ProjectName
from consumers.scaffold.template_text import filled_in

__all__ = ["EXTRAS", "FRAMEWORKS", "TEMPLATES", "Choice", "project_files"]

TEMPLATES: Final = ("agent", "team", "llm", "web")
FRAMEWORKS: Final = ("openai", "langgraph", "pydantic-ai")
EXTRAS: Final = (*FRAMEWORKS, "postgres", "kafka", "keys")
_MODEL: Final = "gpt-5-mini"
_ENDING: Final = ".tmpl"


class Choice(NamedTuple):
    """What a project is made of: a template, and extras of `--with`."""

    name: ProjectName
    template: str = "agent"
    extras: Set[str] = frozenset()
    source: str = ""
    """Where uv finds sealbus, as a TOML table; empty for the package index."""
    can_sign: bool = True
    """Whether the package for signatures is installed, so that keys can be made now."""

    @property
    def features(self) -> frozenset[str]:
        """The words that templates ask about."""
        found = {self.template, *self.extras}
        if found & {"llm", *FRAMEWORKS}:
            # An approval is signed, so its agents have keys.
            found |= {"llm", "keys"}
        if "llm" in found and not found & set(FRAMEWORKS):
            found.add("plain-llm")
        if "llm" not in found or "team" in found:
            # An assistant alone takes tasks in words.
            found |= {"types", "effects"} if "postgres" in found else {"types"}
        if found & {"postgres", "kafka"}:
            found.add("servers")
        if "keys" in found:
            found.add("keys-made" if self.can_sign else "keys-later")
        if self.source:
            found.add("source")
        return frozenset(found)

    @property
    def agents(self) -> tuple[str, ...]:
        """The ids of the agents, the one that is asked first."""
        name = self.name.distribution
        return (f"{name}-planner@svc", f"{name}-researcher@svc") if self.template == "team" else (f"{name}@svc",)

    @property
    def key_owners(self) -> tuple[str, ...]:
        """Who gets a key: the agents, the command line that asks them, the audit, and the person who approves."""
        return (*self.agents, "cli@sealbus", "audit@sealbus", "you@local")


class _File(NamedTuple):
    """A file of a project: its *path*, the condition for it, its line in the README, and its template."""

    path: str
    condition: str = ""
    about: str = ""
    template: str = ""


_PACKAGE: Final = "src/{{package}}"
_FILES: Final = (
    _File(f"{_PACKAGE}/__init__.py"),
    _File(f"{_PACKAGE}/messages.py", "types", "the message types"),
    _File(f"{_PACKAGE}/agent.py", "not team", "the agent: an App and its handlers"),
    _File(f"{_PACKAGE}/planner.py", "team", "the agent that is asked: an App and its handlers"),
    _File(f"{_PACKAGE}/researcher.py", "team", "the agent that the planner asks"),
    *(
        _File(
            f"{_PACKAGE}/{module}.py",
            kind,
            about,
            f"assistants/{kind}{'' if module == 'assistant' else '-scripted'}.py",
        )
        for kind in ("plain-llm", *FRAMEWORKS)
        for module, about in (
            ("assistant", "the model" + (" with its tools" if kind != "plain-llm" else "") + "; nothing of sealbus"),
            ("scripted", "the model that answers in tests and without an API key"),
        )
    ),
    _File(f"{_PACKAGE}/tools.py", "llm", "one tool that reads, and one that waits for a person"),
    _File(f"{_PACKAGE}/web.py", "web", "the web service"),
    _File(f"{_PACKAGE}/effects.py", "effects", "what is written to the database, once for each message"),
    _File("tests/test_agent.py", "not team and not llm", "its tests, on a log in memory"),
    _File("tests/test_agent.py", "llm and not team", "its tests, on a log in memory", "tests/test_assistant.py"),
    _File("tests/test_team.py", "team", "each agent alone, and both together, on a log in memory"),
    _File("tests/test_web.py", "web", "the web service on a log of its own"),
    _File("schema.sql", "effects", "the table of `effects.py`"),
    _File("sealbus.toml", about="settings, and the apps that commands use by default"),
    _File("policy.toml", "keys", "who may do what"),
    _File("policy.cases.toml", "keys", "what the policy has to answer"),
    _File("compose.yaml", "servers", "servers for development"),
    _File(".env.example", "llm", "the environment variables"),
    _File("pyproject.toml", about="dependencies, and settings of pytest, mypy and ruff"),
    _File("README.md"),
    _File(".gitignore"),
    _File(".python-version"),
)


def project_files(choice: Choice) -> Mapping[str, str]:
    """Return the files of a project: path -> text. `schemas/` and keys are not among them."""
    features, values = choice.features, _values(choice)
    files = list(_chosen(choice, values))
    table = [f"| `{path}` | {file.about} |" for path, file in files if file.about]
    if "types" in features:
        table.append("| `schemas/` | the published versions of the types |")
    values["table"] = "\n".join(table)
    folder = resources.files(__package__) / "templates"
    return {
        path: filled_in((folder / f"{_template(file)}{_ENDING}").read_text("utf-8"), features, values)
        for path, file in files
    }


def _chosen(choice: Choice, values: Mapping[str, str]) -> Iterator[tuple[str, _File]]:
    for file in _FILES:
        applies = f"%% if {file.condition}\n{file.path}\n%% end" if file.condition else file.path
        if path := filled_in(applies, choice.features, values).strip():
            yield path, file


def _template(file: _File) -> str:
    """Return the name of the template of *file*: a dot first would hide it from some tools."""
    path = file.template or file.path.replace(_PACKAGE, "package")
    return f"dot-{path[1:]}" if path.startswith(".") else path


class _Framework(NamedTuple):
    """What the templates name of a framework: its adapter, and the class of its models."""

    adapter: str
    model_module: str
    model_name: str
    model_class: str


_ADAPTED: Final[Mapping[str, _Framework]] = {
    "openai": _Framework("openai_agents", "agents", "Model", "Model | str"),
    "langgraph": _Framework("langgraph", "langchain_core.language_models", "BaseChatModel", "BaseChatModel"),
    "pydantic-ai": _Framework("pydantic_ai", "pydantic_ai.models", "Model", "Model | str"),
}


def _values(choice: Choice) -> dict[str, str]:
    features, (name, package) = choice.features, choice.name
    wanted = {*features & {*FRAMEWORKS, "postgres"}, *(["trust"] if "keys" in features else [])}
    modules = ("planner", "researcher") if "team" in features else ("agent",)
    own = [f"{name}.*"] if "types" in features else []
    has_keys, is_stored = "keys" in features, bool(features & {"llm", "postgres"})
    return {
        "name": name,
        "package": package,
        "prefix": package.upper(),
        "summary": f"{'Two agents that answer' if 'team' in features else 'An agent that answers'} questions.",
        "extras": f"[{','.join(sorted(wanted))}]" if wanted else "",
        "source": choice.source,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "apps": ", ".join(f'"{package}.{module}:app"' for module in modules),
        "keys": " ".join(choice.key_owners),
        "first_agent": choice.agents[0],
        "model": _MODEL,
        "asked_types": json.dumps([*own, "task.*"] if own else "task.*"),
        "seen_types": json.dumps([*own, "task.*", "status.update"]),
        "work_types": json.dumps([*own, "task.*", "status.update", *(["usage.reported"] if "llm" in features else [])]),
        "asked": f"{name}.question" if "types" in features else "task.request",
        "answered": f"{name}.answer" if "types" in features else "task.result",
        "you": 'bus.as_agent("cli@sealbus")' if has_keys else "bus",
        "researcher": f', agent="{name}-researcher@svc"' if has_keys else "",
        "planner": f'bus.as_agent("{name}-planner@svc")' if has_keys else "bus",
        # Steps and transactions are stored with the inbox's record of the message.
        "always": ', dedup="always"' if is_stored else "",
        # A researcher with a model may wait for a person.
        "patience": "7200" if "llm" in features else "30",
        "lookup_patience": "7000" if "llm" in features else "20",
        **next((found._asdict() for each, found in _ADAPTED.items() if each in features), {}),
    }
