"""The command line: `sealbus VERB ...` for what is done daily, `sealbus NOUN VERB ...` for everything else.

Owns the table of verbs and nouns. Each is a module of its own, imported only when called, so that starting stays fast.
`consumers.cli.exit_codes` owns exit codes.
"""

from __future__ import annotations

from consumers.cli.shell import Shell, Verb, version_option

__all__ = ["main"]

_HERE = "consumers.cli"
_VERBS = {
    "new": Verb(
        f"{_HERE}.new",
        "new",
        "create a project: agent, tests, settings",
        section="Build: write an agent and try it",
    ),
    "dev": Verb(f"{_HERE}.dev", "dev", "run apps with reload, console and audit on one page"),
    "run": Verb(f"{_HERE}.run", "run", "run apps in production: the workers"),
    "check": Verb(
        f"{_HERE}.check", "check", "find mistakes in code, schemas, settings, policy and keys before you deploy"
    ),
    "demo": Verb(f"{_HERE}.demo", "demo", "watch agents work while things go wrong"),
    "publish": Verb(
        f"{_HERE}.publish",
        "publish",
        "publish JSON lines as messages",
        section="Messages: send and read",
    ),
    "ask": Verb(f"{_HERE}.ask", "ask", "give an agent a task in words and wait for the result"),
    "tail": Verb(f"{_HERE}.tail", "tail", "print the messages of a type or topic; --follow"),
    "show": Verb(
        f"{_HERE}.show", "show", "show one message: content, what became of it and why, how far it is trusted"
    ),
    "trace": Verb(f"{_HERE}.trace", "trace", "show a whole conversation as timeline and tree"),
    "type": Verb(f"{_HERE}.type", "type_", "list, show, export, upcaster            message types and their schemas"),
    "convert": Verb(f"{_HERE}.convert", "convert", "translate files of messages to and from other formats"),
    "status": Verb(
        f"{_HERE}.status",
        "status",
        "what is happening now, most urgent first; --watch",
        section="Operate: see and fix",
    ),
    "doctor": Verb(f"{_HERE}.doctor", "doctor", "check a running installation; each fault comes with its fix"),
    "dlq": Verb(f"{_HERE}.dlq", "dlq", "list, show, redrive, dismiss, add       messages that failed for good"),
    "group": Verb(
        f"{_HERE}.group", "group", "list, show, skip-lost                   who reads what, and how far behind"
    ),
    "agent": Verb(
        f"{_HERE}.agent", "agent", "list, show                              which agents are up, and what they handle"
    ),
    "topic": Verb(f"{_HERE}.topic", "topic", "list, apply                             topics of an app on Kafka"),
    "workflow": Verb(
        f"{_HERE}.workflow",
        "workflow",
        "start, list, show, cancel               sagas and workflow files",
        section="Long work: things that wait for hours or days",
    ),
    "approval": Verb(
        f"{_HERE}.approval", "approval", "list, show, approve, reject, hook       actions that wait for a person"
    ),
    "key": Verb(
        f"{_HERE}.key",
        "key",
        "new, list, rotate, revoke, export       signing keys",
        section="Trust: who may do what, and proof",
    ),
    "door": Verb(f"{_HERE}.door", "door", "add, list, remove                       who may use the gateway"),
    "policy": Verb(f"{_HERE}.policy", "policy", "explain, test, export                   the policy file"),
    "verify": Verb(f"{_HERE}.verify", "verify", "check signatures and hashes of messages and their causes"),
    "audit": Verb(f"{_HERE}.audit", "audit", "query, verify, export, erase            the permanent record"),
    "serve": Verb(
        f"{_HERE}.serve",
        "serve",
        "gateway, console, metrics, audit, outbox, workflows, registry",
        section="Deploy: services and shell",
    ),
    "config": Verb(f"{_HERE}.config", "config", "show every setting and where it comes from"),
    "completion": Verb(f"{_HERE}.completion", "completion", "complete commands in bash, zsh, fish"),
}

main = Shell(
    "sealbus",
    verbs=_VERBS,
    params=[version_option()],
    help="Usage: sealbus COMMAND ...        Settings come from ./sealbus.toml. `sealbus COMMAND --help` has examples.",
)
