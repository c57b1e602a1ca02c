"""Commands in a project: every folder of it has the settings of its `sealbus.toml`, one log and its apps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bus.settings.loading import Loaded
from consumers.cli.session import CommandSession


@pytest.fixture
def project(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with settings; the current folder is one of its folders."""
    path: Path = folder.path
    (path / "pyproject.toml").write_text("")
    (path / "sealbus.toml").write_text('[bus]\nurl = "sqlite:///data/desk.db"\n')
    for name in ("data", "src"):
        (path / name).mkdir()
    monkeypatch.chdir(path / "src")
    return path


def test_a_project_has_one_log_in_all_its_folders(folder: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = folder.call("publish", "research.request", stdin='{"repository": "acme/app"}\n')
    assert sent.exit_code == 0, sent.output
    monkeypatch.chdir(project)
    shown = folder.call("tail", "research.request", "--from", "start", "-o", "json")
    assert [json.loads(line)["value"]["data"] for line in shown.stdout.splitlines()] == [{"repository": "acme/app"}]
    assert sorted(path.name for path in project.rglob("*.db")) == ["desk.db"]


def test_a_command_completes_names_of_the_projects_log(folder: Any, project: Path) -> None:
    folder.call("publish", "research.request", stdin='{"repository": "acme/app"}\n')
    words = {"_SEALBUS_COMPLETE": "fish_complete", "COMP_WORDS": "sealbus tail agents.", "COMP_CWORD": "agents."}
    assert "agents.research.request" in folder.call(env=words).stdout


# --- project.apps -----------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(folder: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project with two apps, in modules whose names are its own."""
    app = (project / "agents.py").read_text()
    (project / "desk_jobs.py").write_text(app)
    (project / "desk_mail.py").write_text(app.replace("job.run", "mail.send").replace("worker@svc", "mail@svc"))
    write_apps(project, "desk_jobs:app", "desk_mail:app")
    before = list(sys.path)
    yield project
    sys.path[:] = before
    for name in ("desk_jobs", "desk_mail"):
        sys.modules.pop(name, None)


def write_apps(project: Path, *apps: str) -> None:
    (project / "sealbus.toml").write_text(
        f'[project]\napps = {json.dumps(apps)}\n[bus]\nurl = "sqlite:///data/desk.db"\n'
    )


def test_types_of_the_projects_apps_are_known_without_naming_them(folder: Any, desk: Path) -> None:
    for name in ("job.run", "mail.send"):
        sent = folder.call("publish", name, stdin='{"number": 1}\n')
        assert sent.exit_code == 0, sent.output
        assert json.loads(folder.call("type", "show", name, "-o", "example").stdout)["number"] == 1
    assert folder.call("tail", "job.run", "--from", "start", "--verify").exit_code == 0


def test_who_names_an_app_means_that_one(folder: Any, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    assert folder.call("type", "show", "job.run", "--app", "desk_jobs:app").exit_code == 0
    refused = folder.call("type", "show", "mail.send", "--app", "desk_jobs:app")
    assert "unknown type 'mail.send'" in refused.output
    both = ("--app", "desk_jobs:app", "--app", "desk_mail:app")
    assert folder.call("type", "show", "mail.send", *both).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [("topic", "apply"), ("doctor",), ("check", "--fail-on", "never"), ("run", "--help")],
)
def test_commands_about_apps_take_those_of_the_project(folder: Any, desk: Path, words: tuple[str, ...]) -> None:
    folder.call("topic", "apply")
    done = folder.call(*words)
    assert done.exit_code == 0, done.output
    topics = {json.loads(line)["topic"] for line in folder.call("topic", "list", "-o", "json").stdout.splitlines()}
    assert {"agents.job.run", "agents.mail.send"} <= topics


def test_topics_of_an_agent_alone_are_those_of_no_app(folder: Any, desk: Path) -> None:
    assert folder.call("topic", "apply", "--agent", "client@svc").exit_code == 0
    assert "job.run" not in folder.call("topic", "list").stdout


def test_a_document_is_about_one_app(folder: Any, desk: Path) -> None:
    several = folder.call("type", "export", "docs/", "--format", "asyncapi")
    assert (several.exit_code, "there are 2" in several.output) == (2, True)
    write_apps(desk, "desk_jobs:app")
    assert folder.call("type", "export", "docs/", "--format", "asyncapi").exit_code == 0
    assert json.loads(Path("docs/asyncapi.json").read_bytes())["info"]["title"] == "worker@svc"


def test_an_app_that_is_not_there_is_the_mistake_of_the_file(folder: Any, desk: Path) -> None:
    write_apps(desk, "desk_job:app")
    refused = folder.call("type", "list")
    assert refused.exit_code == 78
    assert f"project.apps (file {desk / 'sealbus.toml'}): no module 'desk_job'" in refused.output
    assert "the nearest is desk_jobs" in refused.output


def test_an_app_that_fails_says_who_named_it(folder: Any, desk: Path) -> None:
    (desk / "desk_mail.py").write_text("1 / 0\n")
    refused = folder.call("type", "list")
    assert "importing desk_mail failed: ZeroDivisionError" in refused.output
    assert f"hint: project.apps (file {desk / 'sealbus.toml'}) names it" in refused.output


def test_a_namespace_means_the_apps_that_belong_to_it(folder: Any, desk: Path) -> None:
    text = (desk / "desk_mail.py").read_text()
    (desk / "desk_mail.py").write_text(text.replace('App("mail@svc")', 'App("mail@svc", namespace="post")'))
    assert "several namespaces, agents, post" in folder.call("topic", "apply").output
    assert folder.call("topic", "apply", "--namespace", "post").exit_code == 0
    assert folder.call("topic", "apply", "--namespace", "desk").exit_code == 0
    topics = folder.call("topic", "list", "--namespace", "desk").stdout
    assert ("desk.job.run" in topics, "mail.send" in topics) == (True, False)


def test_apps_of_the_environment_are_looked_for_in_the_current_folder(
    folder: Any, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / "desk_jobs.py").rename(desk / "src" / "desk_jobs.py")
    shown = folder.call("type", "list", env={"SEALBUS_PROJECT__APPS": "desk_jobs:app"})
    assert ("job.run" in shown.stdout, "mail.send" in shown.stdout) == (True, False)


@pytest.mark.medium
def test_a_worker_runs_the_apps_of_the_project(folder: Any, desk: Path) -> None:
    folder.call("publish", "mail.send", stdin='{"number": 7}\n')
    worker = folder.start("run", "--processes", "2", stderr=subprocess.DEVNULL)
    folder.wait_until(lambda: [number for number, _ in folder.handled()] == ["7"])
    assert folder.end(worker) == 0


# --- what an image or an editor brings along --------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", ["SEALBUS_HOME", "SEALBUS_PORT", "PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"]
)
def test_a_variable_of_an_image_stops_no_command(folder: Any, name: str) -> None:
    sent = folder.apart("publish", "research.request", stdin='{"repository": "acme/app"}\n', **{name: "/nowhere/x"})
    assert sent.returncode == 0, sent.stderr


def test_a_url_with_a_line_break_makes_no_file_of_that_name(folder: Any, project: Path) -> None:
    sent = folder.call(
        "publish", "research.request", stdin='{"repository": "a"}\n', env={"SEALBUS_BUS__URL": "sqlite:///q.db\n"}
    )
    assert sent.exit_code == 0, sent.output
    assert sorted(path.name for path in (project / "src").iterdir()) == ["q.db"]
    refused = folder.call("tail", "x.y", "--bus", "sqlite:///q\u200b.db")
    assert (refused.exit_code, "'sqlite:///q\\u200b.db'" in refused.output) == (78, True)


# --- which settings, which log ----------------------------------------------------------------------------------------


def test_a_command_that_writes_says_where(folder: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"repository": "a"}\n'
    name = project.name
    sent = folder.call("publish", "research.request", stdin=line)
    assert f"settings: {name}/sealbus.toml, bus: sqlite:///data/desk.db\n" in sent.stderr
    sent = folder.call("publish", "research.request", "--bus", "sqlite:///here.db", stdin=line)
    assert f"settings: {name}/sealbus.toml, bus: sqlite:///here.db\n" in sent.stderr
    sent = folder.call("publish", "research.request", "--config", "../sealbus.toml", stdin=line)
    assert "settings: ../sealbus.toml, bus: sqlite:///data/desk.db\n" in sent.stderr
    (project / "sealbus.toml").unlink()
    sent = folder.call("publish", "research.request", stdin=line)
    assert "settings: defaults, bus: sqlite:///sealbus.db\n" in sent.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "apply", "--agent", "client@svc"),
        ("ask", "nobody@svc", "what", "--no-wait"),
        ("dlq", "dismiss", "--yes"),
        ("dlq", "redrive", "--yes"),
        ("group", "skip-lost", "x-svc-1", "--yes", "--why", "x"),
        ("workflow", "cancel", "3f", "--yes", "--why", "x"),
        ("approval", "reject", "3f", "--why", "x"),
        ("serve", "audit", "--once"),
        ("audit", "erase", "--sender", "x@y", "--yes", "--why", "x"),
        ("serve", "outbox", "sqlite:///shop.db", "--once"),
        ("workflow", "start", "flow.json", "--no-wait"),
    ],
    ids=" ".join,
)
def test_every_command_that_writes_says_where(folder: Any, project: Path, words: tuple[str, ...]) -> None:
    shutil.copy(Path(__file__).parents[1] / "agents" / "workflows" / "market_research.json", project / "src/flow.json")
    folder.call("topic", "apply", "--agent", "somebody@svc")
    done = folder.call(*words)
    assert f"settings: {project.name}/sealbus.toml, bus: sqlite:///data/desk.db\n" in done.stderr, done.output


@pytest.mark.parametrize("words", [("tail", "x.y"), ("dlq", "list"), ("topic", "list"), ("status",), ("group", "list")])
def test_a_log_that_is_not_there_is_named_with_who_named_it(
    folder: Any, project: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    missed = folder.call(*words)
    assert missed.exit_code == 69, missed.output
    assert f"no log at {project / 'data/desk.db'} (bus.url from file {project / 'sealbus.toml'})" in missed.stderr
    missed = folder.call(*words, env={"SEALBUS_BUS__URL": "sqlite:///other.db"})
    assert "no log at other.db (bus.url from SEALBUS_BUS__URL)" in missed.stderr
    (project / "sealbus.toml").unlink()
    assert "no log at sealbus.db (bus.url from default, no sealbus.toml)" in folder.call(*words).stderr


def test_the_folder_of_a_file_is_left_out_of_local_paths_alone(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container works in `/`, whose name is a part of every URL."""
    session = CommandSession(bus="kafka://a/b:9092", namespace=None, config=None, output="table", log_level=None)
    loaded = session.load()
    monkeypatch.setattr(session, "_loaded", Loaded(loaded.settings, loaded.origins, Path("/sealbus.toml")))
    with CliRunner().isolation() as (_, err, _):
        session.announce()
        assert err.getvalue().decode().endswith("bus: kafka://a/b:9092\n")
