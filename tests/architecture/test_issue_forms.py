"""Issue forms that GitHub accepts: it hides a file with an error, without a report."""

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.architecture.source_tree import ROOT

GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
OWN_KEYS = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "options", "multiple", "default"},
    "checkboxes": {"label", "description", "options"},
}
"""Attributes of each kind of element."""


@pytest.mark.parametrize("name", [path.name for path in FORMS])
def test_forms_have_what_github_wants(name: str) -> None:
    form: dict[str, Any] = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert set(form) == {"name", "description", "labels", "body"}
    asked = [element for element in form["body"] if element["type"] != "markdown"]
    assert asked, "a form asks for something"
    ids = [element["id"] for element in asked]
    labels = [element["attributes"]["label"] for element in asked]
    assert len(set(ids)) == len(ids)
    assert len(set(labels)) == len(labels)
    for element in form["body"]:
        assert set(element["attributes"]) <= OWN_KEYS[element["type"]]
        assert set(element) <= {"type", "id", "attributes", "validations"}


def test_there_is_a_form_for_each_purpose_and_a_template_for_changes() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]
    assert "CHANGELOG.md" in (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")
