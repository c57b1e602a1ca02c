"""Authority only narrows along a chain: compared with the languages of small globs, written out."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bus.errors import ContractError
from bus.protocol.envelope import Authority
from bus.trust.authority import Granted, exceeding_member, narrowed, received_authority, to_authority
from bus.trust.labels import SIDE_EFFECTS

ALLOWING = ("can_execute", "can_read", "can_write")
FORBIDDING = ("cannot_execute", "requires_human_approval")

# Languages, by enumeration. Where small globs over a, b and / differ they do so in a short text; c is in no glob.

TEXTS = ["".join(letters) for size in range(6) for letters in itertools.product("abc/", repeat=size)]


@functools.cache
def language(glob: str) -> frozenset[str]:
    """Every short text that *glob* means: `*` stops at /, `**` does not."""
    parts = re.split(r"(\*\*|\*)", glob)
    pattern = re.compile("".join({"**": "[abc/]*", "*": "[abc]*"}.get(part, re.escape(part)) for part in parts))
    return frozenset(text for text in TEXTS if pattern.fullmatch(text))


def union(globs: tuple[str, ...]) -> frozenset[str]:
    return frozenset().union(*(language(glob) for glob in globs))


def text_of(pieces: list[str]) -> str:
    return "".join(pieces).replace("***", "**").replace("****", "**")


globs = (
    st.lists(st.sampled_from(["a", "b", "/", "*", "**"]), max_size=3)
    .map(text_of)
    .filter(lambda glob: "***" not in glob)
)
lists = st.lists(globs, max_size=3, unique=True).map(tuple)
authorities = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*ALLOWING, *FORBIDDING), lists),
        "max_side_effect": st.sampled_from(SIDE_EFFECTS),
        "decision_right": st.sampled_from(["decide", "propose"]),
    },
)


def allowed(chain: list[dict[str, Any] | None], member: str) -> frozenset[str]:
    """What a chain allows, by its definition: the intersection of all that is said."""
    said = [union(stated[member]) for stated in chain if stated is not None and member in stated]
    return frozenset(TEXTS) if not said else frozenset.intersection(*said)


def only_narrows(chain: list[dict[str, Any] | None]) -> bool:
    """Whether no statement of *chain* says more than the last one before it that says anything of that member."""
    for member in (*ALLOWING, "max_side_effect", "decision_right"):
        said = [stated[member] for stated in chain if stated is not None and member in stated]
        for before, after in itertools.pairwise(said):
            if member in ALLOWING and not union(after) <= union(before):
                return False
            if member == "max_side_effect" and SIDE_EFFECTS.index(after) > SIDE_EFFECTS.index(before):
                return False
            if member == "decision_right" and after != before:
                return False
    return True


@pytest.mark.medium
@settings(max_examples=500)
@given(st.lists(st.none() | authorities, max_size=4))
def test_a_chain_holds_exactly_when_every_statement_is_within_the_one_before(chain: list[Any]) -> None:
    try:
        found = received_authority(chain)
    except ContractError as error:
        assert error.reason == "unauthorized"  # noqa: PT017 - either answer may be right
        assert not only_narrows(chain)
        return
    assert only_narrows(chain)
    for member in ALLOWING:
        if member in found:
            assert union(found[member]) == allowed(chain, member)
        else:
            assert all(stated is None or member not in stated for stated in chain)
    for member in FORBIDDING:
        said = [stated[member] for stated in chain if stated is not None and member in stated]
        assert set(found.get(member, ())) == {glob for stated in said for glob in stated}


@pytest.mark.medium
@settings(max_examples=300)
@given(authorities, authorities)
def test_an_authority_is_granted_exactly_when_it_is_within_the_received_one(asked: Any, granted: Any) -> None:
    authority = msgspec.convert(asked, Authority)
    try:
        given_on = narrowed(authority, granted)
    except ContractError as error:
        assert error.reason == "unauthorized"  # noqa: PT017 - either answer may be right
        assert not only_narrows([granted, asked])
        assert exceeding_member(asked, granted) is not None
        return
    assert only_narrows([granted, asked])
    assert exceeding_member(asked, granted) is None
    # What is given on holds in its turn, and is received as it was given.
    sealed = {} if given_on is None else {n: v for n, v in msgspec.structs.asdict(given_on).items() if v is not None}
    assert dict(received_authority([granted, sealed])) == sealed
    for member in (*ALLOWING, *FORBIDDING):
        assert (member in sealed) == (member in asked or member in granted)


@pytest.mark.medium
@given(authorities, authorities, authorities)
def test_narrowing_twice_exceeds_nothing(first: Any, second: Any, third: Any) -> None:
    try:
        received = received_authority([first, second, third])
    except ContractError:
        assume(False)
    for member in ALLOWING:
        assert allowed([first, second, third], member) <= allowed([first], member)
    assert exceeding_member({name: received[name] for name in received if name in ALLOWING}, first) is None


def test_what_is_left_out_is_inherited_and_never_all() -> None:
    cause = {"can_execute": ("git *",), "cannot_execute": ("git push",), "max_side_effect": "write"}
    assert received_authority([cause, {}]) == cause
    assert received_authority([cause, None, None]) == cause
    with pytest.raises(ContractError):
        received_authority([cause, {}, {"can_execute": ("rm *",)}])
    with pytest.raises(ContractError):
        received_authority([cause, None, {"max_side_effect": "external"}])


def test_a_refusal_names_link_and_member() -> None:
    wide, narrow = {"can_read": ("**",)}, {"can_read": ("a/*",)}
    with pytest.raises(ContractError, match=r"link 1 has more authority than its cause: can_read '\*\*'") as caught:
        received_authority([narrow, wide, None])
    assert (caught.value.pointer, caught.value.reason) == ("/metadata/authority/can_read", "unauthorized")
    with pytest.raises(ContractError, match="the message has more authority"):
        received_authority([narrow, wide])


def test_an_empty_list_allows_nothing_and_is_within_everything() -> None:
    assert received_authority([{"can_read": ("**",)}, {"can_read": ()}]) == {"can_read": ()}
    with pytest.raises(ContractError):
        received_authority([{"can_read": ()}, {"can_read": ("a",)}])


def test_what_is_forbidden_only_grows() -> None:
    chain = [{"cannot_execute": ("a", "b")}, {"cannot_execute": ()}, {"cannot_execute": ("c", "a")}]
    assert received_authority(chain) == {"cannot_execute": ("a", "b", "c")}
    given_on = narrowed(Authority(cannot_execute=("c",)), {"cannot_execute": ("a",)})
    assert given_on is not None
    assert given_on.cannot_execute == ("a", "c")


@pytest.mark.parametrize(
    ("granted", "asked", "holds"),
    [
        (["*"], ["a/b"], False),
        (["**"], ["a/b"], True),
        (["a/*"], ["a/*/c"], False),
        (["a/**"], ["a/*/c"], True),
        (["a", "b"], ["a"], True),
        (["a", "b"], ["*"], False),
        (["git *"], ["git push*"], True),
        (["git *"], ["git"], False),
        (["git push"], ["Git push"], False),
        # Two or more stars in a row are any text.
        (["*****"], ["a/b"], True),
        (["**"], ["*****"], True),
        (["a***"], ["a**"], True),
        (["a?"], ["ab"], False),
        (["[ab]"], ["a"], False),
    ],
)
def test_globs(granted: list[str], asked: list[str], holds: bool) -> None:
    found = exceeding_member({"can_execute": asked}, {"can_execute": granted})
    assert (found is None) == holds


def test_an_unknown_side_effect_can_only_lower() -> None:
    granted: Granted = {"max_side_effect": "Everything"}
    assert exceeding_member({"max_side_effect": "read"}, granted) is not None
    assert exceeding_member({"max_side_effect": "none"}, granted) is None


def test_many_globs_with_stars_are_compared_exactly() -> None:
    letters = [f"{a}*{b}*{c}*" for a, b, c in itertools.product("abcdefgh", repeat=3)][:250]
    assert exceeding_member({"can_read": ["*a*b*c*"]}, {"can_read": letters}) is not None
    assert exceeding_member({"can_read": ["a*x*b*c"]}, {"can_read": letters}) is None


@pytest.mark.parametrize(
    ("authority", "pointer"),
    [
        (Authority(can_read=("ok", "*1*2*3*4*5*6*7*8*9")), "/metadata/authority/can_read/1"),
        (Authority(can_write=("**a**b**c**",)), "/metadata/authority/can_write/0"),
        (Authority(can_execute=("",) * 257), "/metadata/authority/can_execute"),
    ],
)
def test_an_authority_that_cannot_be_compared_is_refused(authority: Authority, pointer: str) -> None:
    with pytest.raises(ContractError) as caught:
        narrowed(authority, {"can_read": ("**",), "can_write": ("**",), "can_execute": ("**",)})
    assert (caught.value.pointer, caught.value.reason) == (pointer, "malformed")


def test_no_authority_is_no_statement() -> None:
    assert received_authority([]) == {}
    assert received_authority([None, None]) == {}
    assert narrowed(None, {}) is None
    assert to_authority({}) is None


def test_unknown_members_are_carried_and_grant_nothing() -> None:
    found = received_authority([{"can_read": ("a",), "budget": 5}, {"budget": 7}])
    assert found["budget"] == 7
    given_on = to_authority(found)
    assert given_on == Authority(can_read=("a",))
