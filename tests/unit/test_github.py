"""What GitHub reads: workflows, issue forms and CITATION.cff. Against their schemas, and against the repository."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_pages import options_of
from running import PROJECT, python

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = [GITHUB / "ISSUE_TEMPLATE/bug.yml", GITHUB / "ISSUE_TEMPLATE/feature.yml"]
CITATION = PROJECT / "CITATION.cff"
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": [CITATION],
}
GRANTED = {
    ("docs", "publish"): {"pages": "write", "id-token": "write"},
    ("release", "github"): {"contents": "write"},
    ("release", "pypi"): {"id-token": "write"},
}
"""Permissions of jobs that do more than read."""

each_workflow = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)


def content_of(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def shell_of(workflow: Path) -> dict[str, str]:
    """The shell lines of each step that has some, by its name."""
    steps = [step for job in content_of(workflow)["jobs"].values() for step in job["steps"] if "run" in step]
    return {step["name"]: step["run"] for step in steps}


def paths_of(shell: str) -> set[str]:
    """The words that name something in the repository: with a slash or a suffix, and no variable in front."""
    words = shlex.shlex(shell, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return {word for word in words if re.fullmatch(r"[\w.*-]*[\w*-](/[\w.*-]+)+|\./\S+|[\w-]+\.(md|py|sh|toml)", word)}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schema(schema: str) -> None:
    options = ("--default-filetype", "yaml", "--builtin-schema", schema)
    done = python("-m", "check_jsonschema", *options, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


@each_workflow
def test_a_workflow_may_do_no_more_than_it_needs(workflow: Path) -> None:
    content = content_of(workflow)
    assert content["permissions"] == {"contents": "read"} and content["concurrency"]
    for name, job in content["jobs"].items():
        assert job.get("permissions", {}) == GRANTED.get((workflow.stem, name), {})
        actions = [step["uses"] for step in job["steps"] if "uses" in step]
        assert [one for one in actions if not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", one)] == []


def test_nothing_is_published_without_an_approval() -> None:
    job = content_of(GITHUB / "workflows/release.yml")["jobs"]["pypi"]
    assert job["environment"] == "pypi" and job["if"] == "vars.PUBLISH_TO_PYPI == 'true'"


@each_workflow
def test_shell_of_a_workflow_can_be_read_and_names_what_exists(workflow: Path) -> None:
    text = workflow.read_text("utf-8")
    named = set(re.findall(r'^ +(?:- )?"?([\w.*/-]*[./*][\w.*/-]*)"?$', text, re.MULTILINE))  # paths in lists
    for shell in shell_of(workflow).values():
        done = subprocess.run(["bash", "-n"], input=shell, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        named |= paths_of(shell)
    assert named and [path for path in named if not any(PROJECT.glob(path.removeprefix("./")))] == []


def test_paths_in_shell_lines_are_found() -> None:
    shell = './a.sh --all b/c.py; .ci/run "$TEMP/d/e.py" x.md && for f in t/*/p.toml; do echo v1.3 -o=f; done'
    assert paths_of(shell) == {"./a.sh", "b/c.py", ".ci/run", "x.md", "t/*/p.toml"}


def test_forms_lead_to_files_and_name_options_that_exist() -> None:
    texts = [path.read_text("utf-8") for path in (*FORMS, GITHUB / "PULL_REQUEST_TEMPLATE.md")]
    links = [link for text in texts for link in re.findall(r"\]\(\.\./blob/HEAD/([^)#]+)[^)]*\)", text)]
    assert len(links) >= 5 and [link for link in links if not (PROJECT / link).is_file()] == []
    assert sum(text.count("](") for text in texts) == len(links), "a link that is not relative to the repository"
    assert "mindgspo doctor EXPERIMENT.yaml --bundle" in texts[0] and "--bundle" in options_of("doctor")


def test_the_citation_is_that_of_the_readme() -> None:
    citation, readme = content_of(CITATION), (PROJECT / "README.md").read_text("utf-8")
    for text in (citation["title"], citation["license"], citation["authors"][0]["name"]):
        assert f"{{{text}}}" in readme
    paper = citation["references"][0]
    assert paper["title"] in readme and paper["identifiers"][0]["value"] in readme
