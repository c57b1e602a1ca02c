"""Settings come from where they are said to, and wrong ones are refused with their name, place and remedy."""

import contextlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bus
from bus.errors import ConfigurationError
from bus.settings.loading import Loaded, _shown, describe, load
from bus.settings.schema import Settings

DEFAULTS = Path(__file__).parents[3] / "config" / "default.toml"


def from_env(**values: str) -> Loaded:
    return load(env={f"SEALBUS_{name}": value for name, value in values.items()}, file=None)


def refusal(
    *, env: dict[str, str] | None = None, file: Path | None = None, flags: dict[str, object] | None = None
) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(env=env or {}, file=file, flags=flags or {})
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


# --- sources ----------------------------------------------------------------------------------------------------------


def test_every_setting_has_a_default_and_every_default_a_setting() -> None:
    written = {f"{section}.{name}" for section, table in tomllib.loads(DEFAULTS.read_text()).items() for name in table}
    assert written == set(load(env={}, file=None).origins)


def test_defaults_have_the_origin_default() -> None:
    loaded = load(env={}, file=None)
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.settings.worker.concurrency == 64
    assert loaded.settings.publish.max_ttl_s == 604_800.0


def test_each_source_wins_over_the_one_below(toml: Path, tmp_path: Path) -> None:
    toml.write_text("[worker]\nconcurrency = 2\n")
    secret = tmp_path / "secret"
    secret.write_text(" 3\n")
    env: dict[str, str] = {}
    flags: dict[str, object] = {}

    def seen() -> tuple[int, str]:
        loaded = load(env=env, file=toml, flags=flags)
        return loaded.settings.worker.concurrency, loaded.origins["worker.concurrency"]

    assert seen() == (2, f"file {toml}")
    env["SEALBUS_WORKER__CONCURRENCY_FILE"] = str(secret)
    assert seen() == (3, "SEALBUS_WORKER__CONCURRENCY_FILE")
    env["SEALBUS_WORKER__CONCURRENCY"] = "4"
    assert seen() == (4, "SEALBUS_WORKER__CONCURRENCY")
    flags["concurrency"] = 5
    assert seen() == (5, "flag --concurrency")


def test_a_byte_order_mark_is_removed(toml: Path, tmp_path: Path) -> None:
    toml.write_text("[worker]\r\nconcurrency = 2\r\n", "utf-8-sig")
    secret = tmp_path / "secret"
    secret.write_text("hush\r\n", "utf-8-sig")
    settings = load(env={"SEALBUS_KAFKA__PASSWORD_FILE": str(secret)}, file=toml).settings
    assert (settings.worker.concurrency, settings.kafka.password) == (2, "hush")


@pytest.mark.parametrize("service", ["SEALBUS", "SEALBUS_WORKER"])
def test_service_variables_of_kubernetes_are_not_settings(service: str) -> None:
    told = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "9100",
        "SERVICE_PORT_METRICS": "9100",
        "PORT": "tcp://10.0.0.1:9100",
        "PORT_9100_TCP": "tcp://10.0.0.1:9100",
        "PORT_9100_TCP_ADDR": "10.0.0.1",
    }
    links = {f"{service}_{name}": value for name, value in told.items()}
    assert load(env=links | {"SEALBUS_WORKER__CONCURRENCY": "3"}, file=None).settings.worker.concurrency == 3
    assert "SEALBUS_WORKER_CONCURRENCY" in refusal(env=links | {"SEALBUS_WORKER_CONCURRENCY": "3"})


def test_the_file_is_named_by_the_argument_else_by_the_environment(toml: Path, tmp_path: Path) -> None:
    toml.write_text('[log]\nlevel = "debug"\n')
    other = tmp_path / "other.toml"
    other.write_text('[log]\nlevel = "error"\n')
    assert load(env={"SEALBUS_CONFIG": str(toml)}, file=None).settings.log.level == "debug"
    assert load(env={"SEALBUS_CONFIG": str(toml)}, file=other).settings.log.level == "error"


def test_a_secret_file_that_is_overruled_is_not_read() -> None:
    loaded = from_env(BUS__URL_FILE="/nowhere/at/all", BUS__URL="memory://")
    assert loaded.origins["bus.url"] == "SEALBUS_BUS__URL"


def test_a_flag_left_out_does_not_override_the_default() -> None:
    assert load(env={}, file=None, flags={"concurrency": None}).origins["worker.concurrency"] == "default"


@pytest.mark.parametrize(
    ("flag", "name"),
    [("bus", "bus.url"), ("namespace", "bus.namespace"), ("concurrency", "worker.concurrency"),
     ("ttl", "publish.ttl_s"), ("worker.concurrency", "worker.concurrency"),
     ("drain-timeout", "worker.drain_timeout_s"), ("drain_timeout_s", "worker.drain_timeout_s"),
     ("publish.timeout_s", "publish.timeout_s"), ("log-level", "log.level")],
)  # fmt: skip
def test_flags_are_named_by_their_setting(flag: str, name: str) -> None:
    before = {key: text for key, text, _ in describe(load(env={}, file=None))}
    loaded = load(env={}, file=None, flags={flag: before[name]})
    assert loaded.origins[name].startswith("flag --")


def test_other_sealbus_variables_are_ignored() -> None:
    ignored = ("FAILPOINT", "REQUIRE_KAFKA", "JAVA", "DEMO_MODEL", "DEMO_ANYTHING")
    assert set(from_env(**dict.fromkeys(ignored, "1")).origins.values()) == {"default"}


def test_an_installed_package_carries_its_defaults(tmp_path: Path) -> None:
    package = tmp_path / "bus"
    shutil.copytree(Path(bus.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "config").mkdir()
    shutil.copy(DEFAULTS, package / "config" / "default.toml")
    script = "from bus.settings.loading import load; print(load(env={}, file=None).settings.worker.concurrency)"
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout == "64\n"


# --- values -----------------------------------------------------------------------------------------------------------


def test_text_from_the_environment_becomes_the_type_of_its_setting() -> None:
    settings = from_env(
        WORKER__CONCURRENCY="20",
        DEADLETTER__DETAILS="true",
        RETRY__TIERS="1s, PT60S,3600",
        WORKER__TIMEOUT_S="2m",
        TOPICS__CREATE="false",
    ).settings
    assert settings.worker.concurrency == 20
    assert settings.deadletter.details is True
    assert settings.retry.tiers == ("1s", "1m", "1h")
    assert settings.retry.tiers_s == (1.0, 60.0, 3600.0)
    assert settings.worker.timeout_s == 120.0
    assert settings.topics.create is False


def test_a_file_may_give_durations_as_numbers_or_text(toml: Path) -> None:
    toml.write_text('[worker]\ntimeout_s = 90\ndrain_timeout_s = "PT10S"\n[retry]\ntiers = [5, "30s"]\n')
    settings = load(env={}, file=toml).settings
    assert (settings.worker.timeout_s, settings.worker.drain_timeout_s, settings.retry.tiers) == (
        90.0,
        10.0,
        ("5s", "30s"),
    )


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        load(env={}, file=None).settings.worker.concurrency = 1  # type: ignore[misc]


def test_settings_forbid_unknown_fields() -> None:
    settings = msgspec.to_builtins(load(env={}, file=None).settings)
    assert isinstance(msgspec.convert(settings, Settings), Settings)
    settings["worker"]["surprise"] = 1
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        msgspec.convert(settings, Settings)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_unknown_variable_names_the_nearest_one() -> None:
    text = refusal(env={"SEALBUS_WORKER__CONCURENCY": "1"})
    assert (
        text == "unknown setting SEALBUS_WORKER__CONCURENCY in the environment; the nearest known one is "
        "SEALBUS_WORKER__CONCURRENCY"
    )


def test_an_unknown_key_names_the_nearest_one_and_its_file(toml: Path) -> None:
    toml.write_text("[worker]\nconcurency = 1\n")
    text = refusal(file=toml)
    assert "worker.concurency" in text
    assert f"in file {toml}" in text
    assert text.endswith("worker.concurrency")


def test_an_unknown_section_names_the_nearest_one(toml: Path) -> None:
    toml.write_text("[wroker]\nconcurrency = 1\n")
    assert refusal(file=toml).endswith("the nearest known one is worker")


def test_an_unknown_flag_names_the_nearest_one() -> None:
    assert refusal(flags={"concurency": 1}).endswith("the nearest known one is --concurrency")


def test_a_flag_that_two_sections_have_needs_its_section() -> None:
    assert "unknown setting --timeout-s" in refusal(flags={"timeout_s": 1})


def test_a_wrong_value_is_refused_with_its_name_origin_and_what_is_expected() -> None:
    text = refusal(env={"SEALBUS_WORKER__CONCURRENCY": "many"})
    assert text == "worker.concurrency (SEALBUS_WORKER__CONCURRENCY): found 'many', expected a whole number"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("WORKER__CONCURRENCY", "0", ">= 1"),
        ("WORKER__CONCURRENCY", "10001", "<= 10000"),
        ("WORKER__CONCURRENCY", "1.5", "a whole number"),
        ("WORKER__TIMEOUT_S", "0s", "1ms to 36500d"),
        ("WORKER__TIMEOUT_S", "soon", "text like 10s"),
        ("TOPICS__PARTITIONS", "1001", "<= 1000"),
        ("TOPICS__CREATE", "perhaps", "true, false or auto"),
        ("PUBLISH__TTL_S", "0", "1ms to 200d"),
        ("TOPICS__RETENTION_S", "100000000000000000", "1ms to 36500d"),
        ("TOPICS__DEADLETTER_RETENTION_S", "1ms", "1s to 36500d"),
        ("WORKER__DRAIN_TIMEOUT_S", "30d", "0s to 7d"),
        ("WORKER__COMMIT_INTERVAL_S", "1ms", "10ms to 1d"),
        ("KAFKA__SESSION_TIMEOUT_S", "25d", "1ms to 7d"),
        ("PUBLISH__TTL_S", "8d", "at most publish.max_ttl_s"),
        ("PUBLISH__MAX_MESSAGE_BYTES", "1048577", "<= 1048576"),
        ("PUBLISH__BUFFER_BYTES", "2048", "at least publish.max_message_bytes"),
        ("TOPICS__RETENTION_S", "1d", "at least publish.max_ttl_s"),
        ("RETRY__BACKOFF", "fibonacci", "constant, linear or exponential"),
        ("RETRY__CAP_S", "0.1s", "at least retry.base_s"),
        ("RETRY__TIERS", "", "text like 10s"),
        ("RETRY__TIERS", "30s,5s", "longer than the one before"),
        ("RETRY__TIERS", "5s,5s", "longer than the one before"),
        ("RETRY__TIERS", "0,5s", "durations above 0"),
        ("RETRY__TIERS", "5s,36501d", "at most 36500d"),
        ("DEADLETTER__DETAILS", "perhaps", "true or false"),
        ("LOG__LEVEL", "loud", "debug, info, warning or error"),
        ("BUS__URL", "redis://host", "sqlite://"),
        ("BUS__NAMESPACE", "My.Space", "single hyphens"),
    ],
)
def test_ranges_and_rules(name: str, value: str, expected: str) -> None:
    text = refusal(env={f"SEALBUS_{name}": value})
    assert f"(SEALBUS_{name})" in text
    assert expected in text


@pytest.mark.parametrize(
    "content",
    ["[worker]\nconcurrency = true\n", '[worker]\nconcurrency = [1]\n[log]\nlevel = "info"\n', "[retry]\ntiers = []\n"],
)
def test_a_file_is_held_to_types(toml: Path, content: str) -> None:
    toml.write_text(content)
    assert f"(file {toml})" in refusal(file=toml)


@pytest.mark.parametrize("content", [b"[worker", b"\xff\xfe", b"worker = 5\n", b"a = " + b"[" * 100_000])
def test_a_file_that_is_not_such_a_file_is_refused(toml: Path, content: bytes) -> None:
    toml.write_bytes(content)
    assert str(toml) in refusal(file=toml)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(file=tmp_path / "none.toml")


def test_a_missing_secret_file_is_refused() -> None:
    assert refusal(env={"SEALBUS_BUS__URL_FILE": "/nowhere/at/all"}).startswith("SEALBUS_BUS__URL_FILE")


# --- describe ---------------------------------------------------------------------------------------------------------


def test_a_password_in_a_url_is_masked() -> None:
    loaded = from_env(BUS__URL="kafka://user:pa@ss@host:9092?sasl_password=x&b=1")
    assert ("bus.url", "kafka://user:***@host:9092?sasl_password=***&b=1", "SEALBUS_BUS__URL") in describe(loaded)


def test_a_secret_is_masked_whatever_it_is() -> None:
    secret = Annotated[str, msgspec.Meta(extra={"secret": True})]
    assert _shown("hush", secret) == "***"
    assert _shown("", secret) == ""


def test_a_refusal_masks_the_password_too() -> None:
    text = refusal(env={"SEALBUS_BUS__URL": "redis://user:hush@host"})
    assert "hush" not in text
    assert "redis://user:***@host" in text


@pytest.mark.parametrize("value", ["31415926", '["hush-31415926"]'])
def test_a_refusal_masks_a_password_of_the_wrong_kind(value: str, toml: Path) -> None:
    toml.write_text(f"[kafka]\npassword = {value}\n")
    assert "31415926" not in refusal(file=toml)


def test_described_settings_load_the_same() -> None:
    loaded = load(env={}, file=None)
    env = {"SEALBUS_" + name.replace(".", "__").upper(): text for name, text, _ in describe(loaded)}
    assert load(env=env, file=None).settings == loaded.settings


@pytest.mark.medium
@given(
    st.dictionaries(
        st.sampled_from(["SEALBUS_WORKER__CONCURRENCY", "SEALBUS_BUS__URL", "SEALBUS_RETRY__TIERS", "SEALBUS_X"]),
        st.text(max_size=12),
    )
)
def test_any_environment_loads_or_is_refused_as_configuration(env: dict[str, str]) -> None:
    with contextlib.suppress(ConfigurationError):
        assert load(env=env, file=None).settings.retry.tiers


def test_reserved_environment_variables_are_not_settings() -> None:
    for name in ("SEALBUS_NATIVE", "SEALBUS_FAILPOINT", "SEALBUS_REQUIRE_KAFKA"):
        load(flags={}, env={name: "x"}, file=None)
