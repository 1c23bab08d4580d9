"""``pytest --ulplab-audit``: which faults the assertions of a suite would let pass; ``--ulplab-report DIR``: what those of ulplab said.

Nothing but pytest is imported until it is asked for.
"""

from __future__ import annotations

import os

import pytest

def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ulplab")
    group.addoption(
        "--ulplab-audit",
        action="store_true",
        help="ask every assertion that two tensors are close again, with faults in what it passed, and report which it lets pass",
    )
    group.addoption(
        "--ulplab-gate",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="another function to ask: it compares two of its arguments, and raises AssertionError or returns whether they are close. They are "
        "found by name and type; MODULE:FUNCTION(2,1) says that the third is asked about, and that the second is what it should be",
    )
    group.addoption(
        "--ulplab-audit-elements",
        type=int,
        default=1 << 18,
        metavar="N",
        help="elements of a tensor that a gate is asked about: of more, --ulplab-audit takes rows and columns in steps [default: 262144]",
    )
    group.addoption("--ulplab-audit-json", metavar="FILE", help="write what --ulplab-audit found to FILE")
    group.addoption(
        "--ulplab-audit-baseline",
        metavar="FILE",
        help="end with 100 if a gate is blind to a fault that it is not blind to in FILE, which --ulplab-audit-json wrote, and with 4 if none was asked",
    )
    group.addoption(
        "--ulplab-reference",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a plain reference of the project in torch (or FILE.py:FUNCTION): of assertions on what it gave, --ulplab-audit reports what "
        "the bound that follows from it says (or ulplab_references in the ini file)",
    )
    parser.addini("ulplab_references", "plain references of the project, as --ulplab-reference names them", "linelist", [])
    group.addoption(
        "--ulplab-report",
        metavar="DIR",
        default=os.environ.get("ULPLAB_REPORT") or None,
        help="write what assertions of ulplab said to DIR/index.html, and inputs of what failed to DIR/capsules (or ULPLAB_REPORT=DIR)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("ulplab_report"):
        from ._report import Reporter

        config.pluginmanager.register(Reporter(config, folder), "ulplab_reporter")
    for option in ("gate", "reference", "audit_json", "audit_baseline"):
        if config.getoption(f"ulplab_{option}") and not config.getoption("ulplab_audit"):
            raise pytest.UsageError(f"--ulplab-{option.replace('_', '-')} is for --ulplab-audit, which is not given")
    if config.getoption("ulplab_audit_elements") < 2:
        raise pytest.UsageError(f"--ulplab-audit-elements is {config.getoption('ulplab_audit_elements')}, expected 2 or more")
    if config.getoption("ulplab_audit"):
        from ._auditor import Auditor

        config.pluginmanager.register(Auditor(config), "ulplab_auditor")
