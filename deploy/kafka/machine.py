"""The command lines that run Kafka's Java programs.

Owns the flags of the Java machine. Does not own processes, nor what the programs are told.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.kafka import jars
from deploy.kafka.java import Java, java

__all__ = ["Machine", "machine"]

# Fewer threads and no second compiler: a small, quickly started process matters more here than its top speed.
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True)
class Machine:
    """A Java runtime with Kafka on its class path."""

    java: Java
    class_path: str
    heap_mb: int
    archive: Path | None = None

    def server(self, properties: Path, *, record: Path | None = None) -> list[str]:
        """The command of a node; with *record* it writes a start-up archive there when it stops."""
        extra = [f"-XX:AOTCacheOutput={record}"] if record else []
        return [*self._command(), *extra, "kafka.Kafka", str(properties)]

    def format(self, properties: Path, cluster_id: str, *arguments: str) -> list[str]:
        """The command that prepares the folder of a node."""
        return [
            *self._command(),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(properties),
            *arguments,
        ]

    def _command(self) -> list[str]:
        logging = Path(__file__).with_name("log4j2.properties")
        heap = [f"-Xms{min(128, self.heap_mb)}m", f"-Xmx{self.heap_mb}m"]
        # An archive that does not fit is no news: Java goes on without it.
        archive = [f"-XX:AOTCache={self.archive}", "-Xlog:aot*=error"] if self.archive else []
        return [
            str(self.java.path),
            *heap,
            *_SMALL,
            *archive,
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            self.class_path,
        ]


def machine(heap_mb: int) -> Machine:
    """Find the Java and the jars of this machine; fetches the jars on the first use."""
    return Machine(java(), jars.class_path(), heap_mb)
