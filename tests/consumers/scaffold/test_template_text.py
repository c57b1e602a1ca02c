"""Templates of projects: values and conditions."""

from __future__ import annotations

import pytest

from consumers.scaffold.template_text import filled_in


@pytest.mark.parametrize(
    ("condition", "features", "shown"),
    [
        ("web", {"web"}, True),
        ("web", set(), False),
        ("not web", set(), True),
        ("web and not llm", {"web"}, True),
        ("web and not llm", {"web", "llm"}, False),
        ("web or llm", {"llm"}, True),
        ("web or llm and keys", {"llm"}, False),
    ],
)
def test_a_condition(condition: str, features: set[str], shown: bool) -> None:
    assert filled_in(f"%% if {condition}\nyes\n%% else\nno\n%% end", features, {}) == ("yes\n" if shown else "no\n")


def test_conditions_are_nested_and_values_filled_in() -> None:
    template = "a {{name}}\n%% if web\nb\n%% if keys\nc\n%% end\nd\n%% end\ne"
    assert filled_in(template, {"web"}, {"name": "desk"}) == "a desk\nb\nd\ne\n"
    assert filled_in(template, {"keys"}, {"name": "desk"}) == "a desk\ne\n"


@pytest.mark.parametrize("template", ["%% if web", "%% end", "%% else"])
def test_an_unbalanced_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="without"):
        filled_in(template, set(), {})


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(KeyError):
        filled_in("{{nobody}}", set(), {})
