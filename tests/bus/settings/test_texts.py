"""Texts from outside mean what people see: what is invisible around them is left out, and inside it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.settings.loading import _TYPES, _extra, load, load_project
from bus.settings.texts import outside_name, stripped
from consumers.agents.loading import load_app
from producers.outbox.open import open_rows

AROUND = ["\n", "\r\n", " ", "\t", "\ufeff", "\u200b", "\u2028", "\xa0"]
NAMES = sorted(name for name, kind in _TYPES.items() if _extra(kind, "path"))


def variable(name: str) -> str:
    return "SEALBUS_" + name.replace(".", "__").upper()


@pytest.mark.parametrize("around", AROUND, ids=ascii)
def test_what_is_invisible_around_a_text_is_left_out(around: str, tmp_path: Path) -> None:
    written = f"{around}sqlite:///q.db{around}"
    file = tmp_path / "mine.toml"
    file.write_text(f'[trust]\nkeys = "{around.encode("unicode_escape").decode()}/etc/keys"\n'.replace("\\x", "\\u00"))
    assert load(env={"SEALBUS_BUS__URL": written}, file=None).settings.bus.url == "sqlite:///q.db"
    assert load(env={}, flags={"bus": written}, file=None).settings.bus.url == "sqlite:///q.db"
    assert load(env={}, file=file).settings.trust.keys == "/etc/keys"
    assert load(env={"SEALBUS_CONFIG": f"{file}{around}"}, file=None).file == file
    assert load_project(env={}, file=Path(f"{file}{around}")).file == file


@pytest.mark.parametrize("around", AROUND, ids=ascii)
def test_a_secret_is_what_is_visible_of_it(around: str, tmp_path: Path) -> None:
    inner = "hu\x07 sh"  # whatever is inside
    (tmp_path / "secret").write_text(f"{inner}{around}")
    for env in (
        {"SEALBUS_KAFKA__PASSWORD_FILE": f"{tmp_path / 'secret'}{around}"},
        {"SEALBUS_KAFKA__PASSWORD": f"{around}{inner}{around}"},
    ):
        assert load(env=env, file=None).settings.kafka.password == inner


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inside", ["\n", "\u200b", "\x00", "\u202e"], ids=ascii)
def test_what_is_invisible_inside_is_refused_and_shown(name: str, inside: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(env={variable(name): f"sqlite:///a{inside}b"}, file=None)
    text = str(caught.value)
    assert text.startswith(f"{name} ({variable(name)}): found 'sqlite:///a")
    assert text.endswith(f"expected no {inside!r} inside")


@pytest.mark.parametrize(
    "url", ["ann:hush@host/a\nb", "ann:hu\nsh@host", "ann:hu s\u200bsh@host", "host/?password=hu\nsh"]
)
def test_a_refusal_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="inside") as caught:
        load(env={"SEALBUS_INBOX__URL": f"postgresql://{url}"}, file=None)
    assert "hu" not in str(caught.value).partition("expected")[0].replace("found 'postgresql", "")
    assert "sh" not in str(caught.value).partition("expected")[0]


def test_names_in_a_list_are_texts_of_their_own() -> None:
    settings = load(env={"SEALBUS_TRUST__HIGH_RISK": "a.b,\n c.d\n", "SEALBUS_RETRY__TIERS": "1s,\n5s\n"}, file=None)
    assert settings.settings.trust.high_risk == ("a.b", "c.d")
    assert settings.settings.retry.tiers == ("1s", "5s")
    with pytest.raises(ConfigurationError, match="inside"):
        load(env={"SEALBUS_PROJECT__APPS": "agents:a\u200bpp"}, file=None)


def test_an_app_and_an_outbox_are_named_by_such_texts(tmp_path: Path) -> None:
    assert load_app("registry@sealbus\n").agent_id == "registry@sealbus"
    with pytest.raises(ConfigurationError, match="inside"):
        load_app("regis\u200btry@sealbus")
    with pytest.raises(ConfigurationError, match="inside"):
        open_rows(f"sqlite:///{tmp_path}/a\nb.db", clock=SystemClock())


def test_spaces_and_letters_of_all_scripts_stay() -> None:
    assert outside_name(" sqlite:////home/Jörg Müller/文書.db\n", "x") == "sqlite:////home/Jörg Müller/文書.db"


@given(st.text(max_size=20))
def test_reading_a_text_twice_changes_nothing(text: str) -> None:
    assert stripped(stripped(text)) == stripped(text)


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("kafka.security_protocol", "SASL_SSL", "sasl_ssl"),
        ("kafka.sasl_mechanism", "scram-sha-256", "SCRAM-SHA-256"),
        ("kafka.compression", "Zstd", "zstd"),
        ("log.level", "INFO", "info"),
        ("log.format", "Json", "json"),
        ("retry.backoff", "Constant", "constant"),
        ("trust.domain", "CLOSED", "closed"),
        ("topics.create", "AUTO", "auto"),
        ("topics.create", "Yes", True),
        ("topics.create", "off", False),
        ("deadletter.details", "on", True),
        ("deadletter.details", "TRUE", True),
        ("deadletter.details", "1", True),
        ("inbox.local", "No", False),
        ("inbox.local", "0", False),
        ("inbox.url", "OFF", "off"),
        ("worker.state_dir", "Auto", "auto"),
        ("policy.file", "ALLOW-ALL", "allow-all"),
        ("bus.url", "Kafka://Host:9092", "kafka://Host:9092"),
        ("inbox.url", "PostgreSQL://host/Db", "postgresql://host/Db"),
    ],
)
def test_cases_and_booleans_are_read_as_people_write_them(
    name: str, written: str, meant: object, tmp_path: Path
) -> None:
    section, _, key = name.partition(".")
    credentials = {"SEALBUS_KAFKA__USERNAME": "ann", "SEALBUS_KAFKA__PASSWORD": "hush"}
    (tmp_path / "mine.toml").write_text(f'[{section}]\n{key} = "{written}"\n')
    for loaded in (
        load(env=credentials | {variable(name): written}, file=None),
        load(env=credentials, file=tmp_path / "mine.toml"),
        load(env=credentials, flags={name: written}, file=None),
    ):
        assert getattr(getattr(loaded.settings, section), key) == meant


@pytest.mark.parametrize("name", ["deadletter.details", "inbox.local", "directory.enabled"])
def test_what_is_no_boolean_is_told_which_are(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"found 'perhaps', expected true or false$"):
        load(env={variable(name): "perhaps"}, file=None)


# --- variables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["HOME", "VERSION", "IMAGE_TAG", "KEY_FILE", "WORKER_IMAGE", "DEMO_MODEL", "PORT"])
def test_a_variable_that_is_no_setting_stops_nothing(name: str) -> None:
    assert set(load(env={f"SEALBUS_{name}": "x"}, file=None).origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("SEALBUS_WORKER_CONCURRENCY", "SEALBUS_WORKER__CONCURRENCY"),
        ("SEALBUS_BUS_URL", "SEALBUS_BUS__URL"),
        ("SEALBUS_KAFKA_PASSWORD_FILE", "SEALBUS_KAFKA__PASSWORD_FILE"),
        ("SEALBUS_POLICI__FILE", "SEALBUS_POLICY__FILE"),
    ],
)
def test_a_variable_that_is_meant_as_a_setting_is_refused(written: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown setting {written} .* is {near}$"):
        load(env={written: "x"}, file=None)
