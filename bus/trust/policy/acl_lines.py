"""Grants as command lines of Kafka's own tool, `kafka-acls.sh`. Pure."""

from __future__ import annotations

import shlex

from bus.trust.policy.acls import AclGrant

__all__ = ["acl_line"]


def acl_line(grant: AclGrant, *, servers: str) -> str:
    """Return the command that gives *grant* to the principal `User:<agent>`; *servers* is inserted unchanged."""
    words = ["--add", "--allow-principal", f"User:{grant.agent}"]
    for operation in grant.operations:
        words += ["--operation", operation]
    for name in grant.names:
        words += [f"--{grant.kind}", name]
    if grant.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return f"kafka-acls.sh --bootstrap-server {servers} {shlex.join(words)}"
