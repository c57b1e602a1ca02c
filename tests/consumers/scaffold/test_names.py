"""Names of new projects: a package, a distribution and the start of message types, and nothing is hidden by them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from consumers.scaffold.names import name_fault, project_name


@pytest.mark.parametrize("name", ["desk", "my-desk", "my_desk", "desk2", "a", "research-desk-2", "d" * 40])
def test_a_good_name(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "such as desk"),
        ("Desk", "such as desk"),
        ("My Orders!", "such as my-orders"),
        ("7days", "such as days"),
        ("my--desk", "such as my-desk"),
        ("desk-", "such as desk"),
        ("my.desk", "such as my-desk"),
        ("bücher", "such as b-cher"),
        ("___", "such as desk"),
        ("d" * 41, "at most 40 characters"),
        ("class", "is a keyword"),
        ("match", "is a keyword"),
        ("logging", "standard library"),
        ("email", "standard library"),
        ("sealbus", "sealbus uses the name"),
        ("tests", "sealbus uses the name"),
        ("click", "hide the package click"),
        ("pydantic-core", "hide the package pydantic_core"),
        ("openai", "hide the package openai"),
        ("agents", "hide the package agents"),
        ("hypothesis", "hide the installed module hypothesis"),
        ("pytest-xdist", r"pytest-xdist .* is installed"),
    ],
)
def test_a_name_that_is_refused(name: str, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        assert name_fault(name) is None, name_fault(name)


def test_what_is_in_the_current_folder_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "desk").mkdir()
    (tmp_path / "shop.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert (name_fault("desk"), name_fault("shop")) == (None, None)


def test_the_forms_of_a_name() -> None:
    assert project_name("my_research-desk") == ("my-research-desk", "my_research_desk")
