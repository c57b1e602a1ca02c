"""Who may connect, and how: the users of a secured cluster, and the settings of confluent_kafka for it.

Does not own clients, nor how certificates are made.
"""

from __future__ import annotations

from deploy.kafka.certificates import SERVER_NAME, Certificates
from deploy.kafka.properties import MECHANISM, Login, Security

__all__ = ["ADMIN", "USER", "client_settings", "secured_by"]

ADMIN = Login("admin", "admin-secret")
USER = Login("bus", "bus-secret")


def client_settings(bootstrap: str, security: Security | None, login: Login = ADMIN) -> dict[str, str]:
    """What a client needs beside its own settings; *login* matters where the cluster is secured."""
    if security is None:
        return {"bootstrap.servers": bootstrap}
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(security.authority),
        "sasl.mechanism": MECHANISM,
        "sasl.username": login.username,
        "sasl.password": login.password,
    }


def secured_by(files: Certificates) -> Security:
    """A cluster with these certificates and our administrator."""
    return Security(keystore=files.keystore, authority=files.authority, certificate_name=SERVER_NAME, admin=ADMIN)
