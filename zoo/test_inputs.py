"""Faults of the zoo are noticed on inputs that `ulplab.inputs` makes from the usual ones; the page is that of the results."""

import re

import pytest
from entry import entries
from inputs_page import NOT_ASKED, PAGE, WAYS, ask

FAULTS = entries("faults")
#: No input shows them: see the page.
UNNOTICED: set[str] = set()


@pytest.mark.parametrize("number", WAYS)
def test_a_fault_is_noticed_on_inputs_from_usual_ones(number):
    found = ask(FAULTS[number], WAYS[number])
    assert found.asked, "the kernel takes none of the inputs"
    assert (found.first is None) == (number in UNNOTICED), found


def test_every_fault_whose_gate_names_an_operation_is_asked():
    named = {number for number, module in FAULTS.items() if hasattr(module, "gate") and re.search(r'op="', source(module).split("def gate")[1])}
    assert named == {*WAYS, *NOT_ASKED}


def source(module):
    with open(module.__file__) as file:
        return file.read()


def test_the_page_lists_them():
    rows = re.findall(r"^\| (\w+) \|", PAGE.read_text(), re.M)
    assert set(rows) == set(WAYS), "run python zoo/inputs_page.py"
