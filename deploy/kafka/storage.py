"""The prepared data folders of a new cluster.

Owns formatting: Kafka's own tool does it for the first node, the others get copies under their own id, which saves a
Java start each. Does not own what the nodes keep there later.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from deploy.kafka.errors import KafkaFailedError
from deploy.kafka.machine import Machine
from deploy.kafka.processes import Processes
from deploy.kafka.properties import CLUSTER_ID, MECHANISM, Login

__all__ = ["DATA", "PROPERTIES", "format_nodes"]

DATA = "data"
PROPERTIES = "server.properties"
_META = "meta.properties"
_TIMEOUT_S = 60.0


def format_nodes(
    folders: Sequence[tuple[int, Path]], machine: Machine, processes: Processes, users: Sequence[Login] = ()
) -> None:
    """Prepare these folders, by node id; those that already have data keep it."""
    new = [(node, folder) for node, folder in folders if not (folder / DATA / _META).exists()]
    if not new:
        return
    (_, first), others = new[0], new[1:]
    scram = [
        argument
        for user in users
        for argument in ("--add-scram", f"{MECHANISM}=[name={user.username},password={user.password}]")
    ]
    _run(machine.format(first / PROPERTIES, CLUSTER_ID, *scram), first / "format.log", processes)
    for node, folder in others:
        _copy(first / DATA, folder / DATA, node)


def _run(command: Sequence[str], log: Path, processes: Processes) -> None:
    with log.open("wb") as output:
        process = processes.start(command, output=output)
    try:
        process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise KafkaFailedError(f"formatting took longer than {_TIMEOUT_S:g} s; its output is in {log}") from error
    finally:
        process.kill()
        process.wait()
        processes.has_ended(process)
    if process.returncode != 0:
        raise KafkaFailedError(
            f"cannot prepare {log.parent / DATA}: {log.read_text('utf-8', 'replace')[-2000:].strip()}"
        )


def _copy(template: Path, target: Path, node: int) -> None:
    own = {"node.id": str(node), "directory.id": base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")}
    lines = [line for line in (template / _META).read_text("utf-8").splitlines() if line.partition("=")[0] not in own]
    unfinished = target.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(template, unfinished)
    (unfinished / _META).write_text(
        "\n".join([*lines, *(f"{name}={value}" for name, value in own.items())]) + "\n", "utf-8"
    )
    unfinished.replace(target)
