"""What the client is told: from the URL, from the settings, and what nobody can change."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.settings.loading import load
from bus.settings.sources import FIXED
from bus.transports.kafka import open_url, options_of
from bus.transports.kafka.options import KafkaOptions
from deploy.kafka.certificates import make


def options(**flags: object) -> KafkaOptions:
    settings = load(flags={f"kafka.{name}": value for name, value in flags.items()}, env={}, file=None).settings
    return KafkaOptions(bootstrap=("h:1",), **options_of(settings))


@pytest.mark.parametrize(
    ("url", "bootstrap"),
    [
        ("kafka://h", ("h:9092",)),
        ("kafka://a:1,b:2", ("a:1", "b:2")),
        ("kafka://a:1, b:2/", ("a:1", "b:2")),
        ("kafka://[::1]:9", ("[::1]:9",)),
        ("kafka://[::1]", ("[::1]:9092",)),
    ],
)
def test_addresses_come_from_the_url(url: str, bootstrap: tuple[str, ...]) -> None:
    assert open_url(url, clock=SystemClock())._options.bootstrap == bootstrap


@pytest.mark.parametrize(
    "url",
    ["kafka://", "kafka://,", "kafka://h:x", "kafka://h:0", "kafka://h:70000", "kafka://:9092", "kafka://u:p@h:1"],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_url(url, clock=SystemClock())


@pytest.mark.parametrize("name", sorted(FIXED))
def test_fixed_client_settings_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="because"):
        open_url(f"kafka://h:1?{name}=x", clock=SystemClock())
    with pytest.raises(ConfigurationError, match="because"):
        load(flags={}, env={f"SEALBUS_KAFKA__{name.upper()}": "x"}, file=None)
    file = tmp_path / "settings.toml"
    file.write_text(f'[kafka]\n{name} = "x"\n', "utf-8")
    with pytest.raises(ConfigurationError, match="because"):
        load(flags={}, env={}, file=file)


def test_fixed_client_settings_reach_every_client() -> None:
    made = options(compression="none")
    producer, member = made.producer(), made.member("g")
    assert (producer["acks"], producer["enable_idempotence"], producer["compression_type"]) == ("all", True, None)
    for consumer in (member, made.reader()):
        wanted = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "check_crcs": True,
        }
        assert wanted.items() <= consumer.items()
    assert "group_instance_id" not in member


def test_joining_outlasts_the_slowest_drain() -> None:
    member = options().member("g")
    assert member["request_timeout_ms"] > member["rebalance_timeout_ms"] > 25_000
    assert member["heartbeat_interval_ms"] * 3 <= member["session_timeout_ms"]


def test_a_user_needs_a_name_and_a_password() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.username"):
        options(security_protocol="sasl_ssl")
    made = options(security_protocol="sasl_ssl", username="u", password="p").common()
    assert (made["security_protocol"], made["sasl_mechanism"], made["sasl_plain_username"]) == (
        "SASL_SSL",
        "SCRAM-SHA-512",
        "u",
    )


def test_a_certificate_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no such file: /nowhere/ca\.pem"):
        options(security_protocol="ssl", ca_file="/nowhere/ca.pem").common()


def test_a_certificate_that_may_not_be_read_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def create(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ssl, "create_default_context", create)
    (tmp_path / "ca.pem").touch()
    with pytest.raises(ConfigurationError, match=r"kafka\.ca_file.*Permission denied"):
        options(security_protocol="ssl", ca_file=str(tmp_path / "ca.pem")).common()


ENCRYPTED = """
import ssl, sys
from bus.transports.kafka.options import KafkaSecurity
from bus.errors import ConfigurationError
try:
    KafkaSecurity(protocol="SSL", cert_file=sys.argv[1], key_file=sys.argv[2]).ssl_context()
except ConfigurationError as error:
    sys.exit(str(error))
"""


def test_an_encrypted_key_never_prompts_for_its_password(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    key = serialization.load_pem_private_key(certificates.client_key.read_bytes(), None)
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "encrypted.pem").write_bytes(key.private_bytes(*form))
    command = [sys.executable, "-c", ENCRYPTED, str(certificates.client_certificate), str(tmp_path / "encrypted.pem")]
    # Without a terminal it would read standard input, for ever.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.wait(45) == 1
        finally:
            process.kill()
        assert process.stderr is not None
        assert "kafka.key_file" in process.stderr.read()


async def test_bearer_tokens_come_from_a_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "issuer.py").write_text("async def token():\n    return 'secret'\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    made = options(security_protocol="sasl_ssl", sasl_mechanism="OAUTHBEARER", token="issuer:token").common()
    assert await made["sasl_oauth_token_provider"].token() == "secret"
    with pytest.raises(ConfigurationError, match="issuer:nothing"):
        options(security_protocol="sasl_ssl", sasl_mechanism="OAUTHBEARER", token="issuer:nothing")


@pytest.mark.medium
def test_the_library_is_imported_only_for_kafka() -> None:
    code = (
        "import sys, sealbus; from bus.transports import open_transport; "
        "open_transport('memory://'); sys.exit('aiokafka' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
