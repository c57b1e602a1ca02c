"""The command line: `sealbus VERB ...`.

Owns the table of verbs. Each verb is a module of its own, imported only when called, so that starting stays fast.
`consumers.cli.exit_codes` owns exit codes.
"""

from __future__ import annotations

from consumers.cli.shell import Shell, Verb, version_option

__all__ = ["main"]

_VERBS = {
    "demo": Verb(
        "consumers.cli.demo.command", "demo", "Watch agents review Python source, with nothing installed but this."
    ),
    "new": Verb(
        "consumers.cli.scaffold.command", "new", "Write a new project: an agent, its test, settings, a Makefile."
    ),
    "worker": Verb("consumers.cli.worker.command", "worker", "Run the handlers of an app."),
    "dev": Verb("consumers.cli.dev", "dev", "Run an app with its worker, audit and console while you write it."),
    "publish": Verb("consumers.cli.publish.command", "publish", "Publish JSON lines from a file or standard input."),
    "ask": Verb("consumers.cli.ask", "ask", "Give an agent a task in words, and wait for what comes of it."),
    "tail": Verb("consumers.cli.tail.command", "tail", "Show the records of a topic, and follow it."),
    "verify": Verb("consumers.cli.verify.command", "verify", "Check sealed messages in files, without a bus."),
    "show": Verb("consumers.cli.explain", "show", "Show one message: its location, its envelope and its payload."),
    "explain": Verb(
        "consumers.cli.explain", "explain", "Show why a message was refused, and the command that fixes it."
    ),
    "blame": Verb("consumers.cli.blame", "blame", "Find the message that does not hold among the causes of one."),
    "trace": Verb("consumers.cli.trace", "trace", "Show a conversation: its messages and their outcomes."),
    "topics": Verb("consumers.cli.topics.command", "topics", "List, create and compare topics."),
    "agents": Verb("consumers.cli.agents", "agents", "Show which agents are there, and whether they work."),
    "groups": Verb("consumers.cli.groups", "groups", "Show the groups, the topics they read, and their lag."),
    "processes": Verb("consumers.cli.processes", "processes", "Show the processes of sagas, and end one."),
    "waits": Verb("consumers.cli.processes", "waits", "Show what processes wait for, and what is overdue."),
    "workflow": Verb("consumers.cli.workflow", "workflow", "Run work among agents from a JSON file."),
    "approvals": Verb("consumers.cli.approvals", "approvals", "Show what waits for a decision, approve and reject it."),
    "top": Verb("consumers.cli.exporter", "top", "Show the current state, most urgent first."),
    "console": Verb("consumers.cli.console", "console", "Show the current state in a browser, and fix faults there."),
    "exporter": Verb("consumers.cli.exporter", "exporter", "Serve the metrics of a namespace to Prometheus."),
    "doctor": Verb("consumers.cli.doctor", "doctor", "Check a whole installation; each fault comes with its fix."),
    "audit": Verb("consumers.cli.audit", "audit", "Record what passes over the bus, prove it, and answer questions."),
    "dlq": Verb("consumers.cli.dlq.command", "dlq", "List, show, redrive and purge dead letters."),
    "outbox": Verb("consumers.cli.outbox", "outbox", "Publish what applications have committed to their databases."),
    "types": Verb("consumers.cli.types", "types", "Show message types and their schemas."),
    "convert": Verb("consumers.cli.convert", "convert", "Convert messages between dialects, line by line."),
    "policy": Verb("consumers.cli.policy", "policy", "Check, explain and test what a policy lets agents do."),
    "trust": Verb("consumers.cli.trust", "trust", "Show the trust level of a message, and the reasons."),
    "lint": Verb("consumers.cli.lint", "lint", "Find what goes wrong between agents although messages are valid."),
    "docs": Verb("consumers.cli.docs", "docs", "Write documents about an app for other tools: AsyncAPI."),
    "keys": Verb("consumers.cli.keys", "keys", "Make signing keys, and manage the trusted ones."),
    "config": Verb("consumers.cli.config", "config", "Show and check settings."),
    "completion": Verb("consumers.cli.completion", "completion", "Complete commands in bash, zsh or fish."),
}

main = Shell(
    "sealbus",
    verbs=_VERBS,
    params=[version_option()],
    help="""An asynchronous message bus for software agents.

    Data goes to standard output, logs and progress to standard error. Without --bus everything happens in sealbus.db in
    the current directory.

    \b
    Examples:
      sealbus worker agents:app                     run the handlers of `app` in agents.py
      sealbus publish research.request work.ndjson  one JSON object per line
      sealbus tail research.request --follow
      sealbus dlq list

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage, 69 bus unreachable, 75 try again later, 78 wrong settings,
    130 and 143 interrupted.
    """,
)
