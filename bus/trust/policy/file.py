"""Read a policy from TOML; refuse invalid entries with an error that names the correction. Pure.

Owns the names of its keys and the form of their values. `bus.trust.policy.decision` has the meaning of rules, and
`bus.trust.policy.check` finds mistakes in a well-formed policy.
"""

from __future__ import annotations

import re
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NoReturn, get_args

import msgspec

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.protocol import authority_globs
from bus.protocol.envelope import Authority, Performative
from bus.protocol.identifiers import is_text_id
from bus.trust.labels import CLASSIFICATIONS, INSTRUCTING, LEVELS, SIDE_EFFECTS, rank_of_level
from bus.trust.policy.facts import ACTIONS, INTERPRETERS, AgentFacts
from bus.trust.policy.globs import glob_fault
from bus.trust.policy.rules import RESERVED_IDS, PolicyRule, PolicyRules

__all__ = ["MAX_RULES", "PolicyRules", "parse_policy"]

MAX_RULES: Final = 1000
_MAX_ROWS: Final = 10_000
_MAX_BYTES: Final = 4_194_304
_MAX_LIST: Final = 1000
_MAX_QUORUM: Final = 20
_MAX_MAJOR: Final = 1_000_000

_RULE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_FOREIGN: Final = re.compile(r"[?\[\]{}\\]|\A!")
"""Special characters of other pattern languages: here they would match only themselves, so a rule would never match."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_HELD: Final = ("handle", "redrive", "use")
_INSTRUCTIONS: Final = tuple(level for level in LEVELS if rank_of_level(level) >= rank_of_level("user_request"))

_ROW_KEYS: Final = (
    "id",
    "kind",
    "owner",
    "capabilities",
    "roles",
    "groups",
    "trust_ceiling",
    "trust_at_most",
    "classification_floor",
    "clearance",
    "model",
    "interpreter",
    "authority",
)
_RULE_KEYS: Final = (
    "id",
    "effect",
    "action",
    "agents",
    "capabilities",
    "roles",
    "actor_groups",
    "types",
    "majors",
    "groups",
    "resources",
    "performatives",
    "lift_to",
    "tools",
    "instructions_from",
    "for_interpreter",
    "when",
    "require_approval",
    "approvers",
    "quorum",
    "same_owner",
)
_WHEN_KEYS: Final = (
    "signed",
    "algorithm",
    "trust_at_least",
    "classification_at_most",
    "max_side_effect",
    "tags_all",
    "tags_none",
    "namespace",
    "via_all",
    "via_complete",
    "different_owner",
    "first",
    "not_before",
    "not_after",
)


def parse_policy(text: bytes | str, *, name: str) -> PolicyRules:
    """Return the policy that *text* says; *name* is its file's, for errors.

    Raises ConfigurationError with file, rule or agent, key, and what to write instead.
    """
    data = (text.encode() if isinstance(text, str) else text).removeprefix(BOM_UTF8)
    if len(data) > _MAX_BYTES:
        raise ConfigurationError(f"{name}: a policy has at most 4 MiB")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name}: a policy is UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"{name}: not valid TOML: {error}") from None
    top = _Table(document, name, ("agents", "rules"))
    rows = _each(top, "agents", _MAX_ROWS, _read_row)
    rules = _each(top, "rules", MAX_RULES, _read_rule)
    return PolicyRules(name=name, sha256=sha256(data).hexdigest(), rows=rows, rules=rules)


class _Table:
    """One table of the file: takes values out of it by key, and locates invalid ones in errors."""

    def __init__(self, values: Mapping[str, Any], location: str, known: Collection[str]) -> None:
        self.values = values
        self.place = location
        for key in values:
            if key not in known:
                raise ConfigurationError(
                    f"{location}: no key {key[:80]!r}{nearest(key, known)}; there are {', '.join(known)}"
                )

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise ConfigurationError: another value of *key* was *expected*."""
        found = repr(self.values[key]) if key in self.values else "nothing"
        raise ConfigurationError(f"{self.place}: {key}: found {found[:120]}, expected {expected}")

    def has(self, key: str) -> bool:
        return key in self.values

    def word(self, key: str, words: Sequence[str]) -> str | None:
        """Return the value of *key*, one of *words*."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or value not in words:
            self.refuse(key, f"one of {', '.join(words)}{nearest(str(value), words)}")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def number(self, key: str, low: int, high: int) -> int | None:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
            self.refuse(key, f"an integer from {low} to {high}")
        return value

    def moment(self, key: str) -> int | None:
        """Return a date with time and offset in milliseconds since 1970."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            self.refuse(key, "a time with an offset and without quotes, such as 2027-01-31T12:00:00Z")
        try:
            return (value.astimezone(UTC) - _EPOCH) // _MILLISECOND
        except OverflowError:
            self.refuse(key, "a time in the years 1 to 9999")

    def text_id(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not (isinstance(value, str) and is_text_id(value)):
            self.refuse(key, "1 to 256 characters, none of them a control or format character")
        return value

    def texts(self, key: str, what: str = "a text or a list of texts") -> tuple[str, ...] | None:
        """Return the value of *key*, a text or a list of different ones."""
        value = self.values.get(key)
        if value is None:
            return None
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            self.refuse(key, what)
        if not listed:
            self.refuse(key, f"{what}, at least one: leave the key out where it does not matter")
        if len(listed) > _MAX_LIST or len(set(listed)) != len(listed):
            self.refuse(key, f"{what}, at most {_MAX_LIST}, each once")
        return tuple(listed)

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return the value of *key*, texts in which a star has no meaning."""
        listed = self.texts(key)
        for one in listed or ():
            if not is_text_id(one) or "*" in one:
                self.refuse(key, "names of 1 to 256 characters without stars: they are compared as a whole")
        return listed

    def globs(
        self, key: str, *, empty: bool = False, fault_of: Callable[[str], str | None] = glob_fault
    ) -> tuple[str, ...] | None:
        listed = self.texts(key, "a glob or a list of globs")
        for one in listed or ():
            self.check_glob(key, one, empty=empty, fault_of=fault_of)
        return listed

    def check_glob(
        self, key: str, glob: str, *, empty: bool = False, fault_of: Callable[[str], str | None] = glob_fault
    ) -> None:
        if (fault := fault_of(glob)) is not None:
            raise ConfigurationError(f"{self.place}: {key}: {glob[:80]!r} {fault}")
        if not (is_text_id(glob) or (empty and not glob)):
            self.refuse(key, "globs without control and format characters")
        if (found := _FOREIGN.search(glob)) is not None:
            self.refuse(
                key,
                f"globs of * (within a segment) and ** (across) only: {found[0]!r} has no meaning here; "
                "for exceptions write another rule with effect deny",
            )

    def words(self, key: str, known: Sequence[str]) -> tuple[str, ...] | None:
        listed = self.texts(key, f"one or several of {', '.join(known)}")
        for one in listed or ():
            if one not in known:
                self.refuse(key, f"one or several of {', '.join(known)}{nearest(one, known)}")
        return listed

    def only(self, key: str, allowed: bool, where: str) -> None:
        """Refuse *key* unless *allowed*; *where* names the allowed location."""
        if key in self.values and not allowed:
            raise ConfigurationError(f"{self.place}: {key} is only allowed in {where}: remove it")


def _each(top: _Table, key: str, limit: int, read: Callable[[Any, str], Any]) -> list[Any]:
    listed = top.values.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        top.refuse(key, f"tables: write [[{key}]]")
    if len(listed) > limit:
        raise ConfigurationError(f"{top.place}: {len(listed)} {key}, at most {limit} are allowed")
    found: list[Any] = []
    ids: set[str] = set()
    for number, values in enumerate(listed, 1):
        location = f"{top.place}: {key[:-1]} {_shown(values.get('id'), number)}"
        one = read(values, location)
        if one.id in ids:
            raise ConfigurationError(f"{location}: this id occurs twice: merge the two, or rename one")
        ids.add(one.id)
        found.append(one)
    return found


def _shown(value: object, number: int) -> str:
    return repr(value[:80]) if isinstance(value, str) else f"number {number}"


def _read_row(values: Mapping[str, Any], location: str) -> AgentFacts:
    table = _Table(values, location, _ROW_KEYS)
    agent_id = table.text_id("id")
    if agent_id is None:
        table.refuse("id", "the id of an agent, such as planner@svc, or a glob")
    table.check_glob("id", agent_id)
    kind = table.word("kind", ("human", "agent", "service")) or "agent"
    interpreter = table.flag("interpreter")
    _check_kind(table, agent_id, kind, interpreter)
    if table.has("trust_ceiling") and table.has("trust_at_most"):
        raise ConfigurationError(f"{location}: trust_at_most is another name of trust_ceiling: write one of them")
    ceiling = table.word("trust_ceiling", LEVELS) or table.word("trust_at_most", LEVELS) or INSTRUCTING
    model = table.flag("model")
    facts = {
        "id": agent_id,
        "kind": kind,
        "owner": table.text_id("owner"),
        "capabilities": table.names("capabilities") or (),
        "roles": table.names("roles") or (),
        "groups": table.names("groups") or (),
        "trust_ceiling": ceiling,
        "classification_floor": table.word("classification_floor", CLASSIFICATIONS) or "public",
        "clearance": table.word("clearance", CLASSIFICATIONS) or "internal",
        "model": kind == "agent" if model is None else model,
        "interpreter": bool(interpreter) or agent_id in INTERPRETERS,
        "listed": True,
    }
    row = msgspec.convert(facts, AgentFacts)
    return msgspec.structs.replace(row, authority=_read_authority(table))


def _check_kind(table: _Table, agent_id: str, kind: str, interpreter: bool | None) -> None:
    if "*" in agent_id and (kind == "human" or interpreter):
        what = "a human" if kind == "human" else "an interpreter"
        raise ConfigurationError(
            f"{table.place}: id: {what} needs a row with its exact id: write the id without a star"
        )
    if agent_id in INTERPRETERS and interpreter is False:
        raise ConfigurationError(f"{table.place}: interpreter: {agent_id} is an interpreter always: leave the key out")


def _read_authority(table: _Table) -> Authority | None:
    value = table.values.get("authority")
    if value is None:
        return None
    if not isinstance(value, dict):
        table.refuse("authority", "a table: { can_read = [...], max_side_effect = ... }")
    inner = _Table(value, f"{table.place}: authority", Authority.__struct_fields__)
    stated: dict[str, Any] = {}
    for key in ("can_read", "can_write", "can_execute"):
        # An empty list says "nothing", so unlike elsewhere it is a value.
        stated[key] = (
            () if inner.values.get(key) == [] else inner.globs(key, fault_of=authority_globs.authority_glob_fault)
        )
        if len(stated[key] or ()) > authority_globs.MAX_GLOBS:
            inner.refuse(key, f"at most {authority_globs.MAX_GLOBS} globs")
    for key in ("cannot_execute", "requires_human_approval"):
        stated[key] = () if inner.values.get(key) == [] else inner.globs(key)
    return Authority(
        **stated,
        max_side_effect=inner.word("max_side_effect", SIDE_EFFECTS),
        decision_right=inner.text_id("decision_right"),
    )


def _read_rule(values: Mapping[str, Any], location: str) -> PolicyRule:
    table = _Table(values, location, _RULE_KEYS)
    inner = table.values.get("when", {})
    if not isinstance(inner, dict):
        table.refuse("when", "a table: write [rules.when] below the rule")
    misplaced = [key for key in inner if key in _RULE_KEYS]
    if misplaced:
        raise ConfigurationError(f"{location}: when: {misplaced[0]} belongs in the rule itself, above [rules.when]")
    when = _Table(inner, f"{location}: when", _WHEN_KEYS)
    rule_id, effect, actions = _read_head(table)
    rule = {
        "id": rule_id,
        "effect": effect,
        "actions": actions,
        **{key: table.globs(key) for key in ("agents", "types", "groups")},
        **{key: table.names(key) for key in ("capabilities", "roles", "actor_groups")},
        "resources": table.globs("resources", empty=True),
        "majors": _read_majors(table),
        "performatives": table.words("performatives", get_args(Performative)),
        **_read_special(table, effect, actions),
        **_read_need(table, effect, actions),
        **_read_when(when),
    }
    return msgspec.convert({key: value for key, value in rule.items() if value is not None}, PolicyRule)


def _read_head(table: _Table) -> tuple[str, str, tuple[str, ...]]:
    rule_id = table.values.get("id")
    if not isinstance(rule_id, str) or not _RULE_ID.match(rule_id):
        table.refuse("id", "1 to 64 letters, digits, dots, hyphens and underscores")
    if rule_id in RESERVED_IDS:
        table.refuse("id", f"another id: {rule_id} is what the bus calls decisions that no rule makes")
    effect = table.word("effect", ("allow", "deny", "need"))
    if effect is None:
        table.refuse("effect", "allow, deny or need")
    actions = table.words("action", ACTIONS)
    if actions is None:
        table.refuse("action", f"one or several of {', '.join(ACTIONS)}")
    return rule_id, effect, actions


def _read_majors(table: _Table) -> tuple[int, ...] | None:
    value = table.values.get("majors")
    if value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(type(one) is int and 0 <= one <= _MAX_MAJOR for one in listed):
        table.refuse("majors", "a major version or a list of them, such as [1, 2]")
    return tuple(listed)


def _read_special(table: _Table, effect: str, actions: tuple[str, ...]) -> dict[str, Any]:
    table.only("lift_to", actions == ("lift",), 'rules with action = "lift" alone')
    if actions == ("lift",) and effect == "allow":
        for key in ("agents", "types", "lift_to"):
            if not table.has(key):
                table.refuse(key, "a value: a rule that allows lifting names agents, types and lift_to")
    if effect == "allow" and "lift" in actions and len(actions) > 1:
        table.refuse("action", 'lift alone, in a rule of its own: action = "lift"')
    table.only("tools", actions == ("use",), 'rules with action = "use" alone')
    table.only("for_interpreter", effect == "allow" and "publish" in actions, "rules that allow publish")
    table.only(
        "instructions_from",
        effect == "allow" and "handle" in actions and table.has("types") and table.has("groups"),
        "rules that allow handle and name types and groups",
    )
    return {
        "lift_to": table.words("lift_to", LEVELS),
        "tools": table.globs("tools"),
        "for_interpreter": bool(table.flag("for_interpreter")),
        "instructions_from": table.word("instructions_from", _INSTRUCTIONS),
    }


def _read_need(table: _Table, effect: str, actions: tuple[str, ...]) -> dict[str, Any]:
    by = table.word("require_approval", ("none", "agent", "human"))
    needs = by in ("agent", "human")
    if needs and effect != "need":
        table.refuse("require_approval", 'none in this rule, or effect = "need"')
    if effect == "need" and not needs:
        table.refuse("require_approval", "human or agent, in a rule with effect need")
    if effect == "need" and not set(actions) <= set(_HELD):
        table.refuse(
            "action", "handle or redrive, or use: only messages to be handled, and tools, can wait for an approval"
        )
    for key in ("approvers", "quorum", "same_owner"):
        table.only(key, effect == "need", "rules with effect need")
    return {
        "by": by if needs else None,
        "approvers": table.globs("approvers"),
        "quorum": table.number("quorum", 1, _MAX_QUORUM),
        "same_owner": table.flag("same_owner"),
    }


def _read_when(when: _Table) -> dict[str, Any]:
    before, after = when.moment("not_before"), when.moment("not_after")
    if before is not None and after is not None and before > after:
        when.refuse("not_after", "a time after not_before")
    return {
        "signed": when.flag("signed"),
        "algorithm": when.word("algorithm", ("asymmetric", "shared")),
        "trust_at_least": when.word("trust_at_least", LEVELS),
        "classification_at_most": when.word("classification_at_most", CLASSIFICATIONS),
        "max_side_effect": when.word("max_side_effect", SIDE_EFFECTS),
        "tags_all": when.names("tags_all"),
        "tags_none": when.names("tags_none"),
        "namespace": when.globs("namespace"),
        "via_all": when.globs("via_all"),
        "via_complete": when.flag("via_complete"),
        "different_owner": when.flag("different_owner"),
        "first": when.flag("first"),
        "not_before_ms": before,
        "not_after_ms": after,
    }
