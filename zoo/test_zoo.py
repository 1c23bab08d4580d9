"""Every fault of the zoo is noticed, and no control is: `pytest zoo`."""

import json
import os
import re
import shutil
import subprocess
import sysconfig

import pytest
from entry import SEEDS, draw, entries, refused
from page import PAGE, text

FAULTS, CONTROLS = entries("faults"), entries("controls")


@pytest.mark.parametrize("number", [number for number, module in FAULTS.items() if hasattr(module, "kernel")])
def test_a_fault_is_noticed_and_what_is_right_passes(number):
    module = FAULTS[number]
    for seed in SEEDS:
        inputs = draw(module, seed)
        assert refused(module, inputs, False) is None, f"seed {seed}: a false alarm"
        assert refused(module, inputs, True), f"seed {seed}: not noticed"
        if hasattr(module, "usual"):
            assert refused(module, draw(module, seed, usual=True), False) is None, f"seed {seed}: a false alarm on usual data"


@pytest.mark.parametrize("number", CONTROLS)
def test_a_control_passes(number):
    module = CONTROLS[number]
    for seed in SEEDS:
        inputs = draw(module, seed)
        for chosen in (False, True):
            assert refused(module, inputs, chosen) is None, f"seed {seed}: a false alarm"


def test_faults_of_kernels_are_there():
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    program = shutil.which("ulplab", path=places)
    assert program, f"ulplab is not in {places}"
    listed = subprocess.run([program, "kernels", "list", "--json"], capture_output=True, text=True, check=True).stdout
    planted = {fault["name"] for op in json.loads(listed) for fault in op["mutants"]}
    for number, module in FAULTS.items():
        missing = set(module.ENTRY.planted) - planted
        assert not missing, f"{number}: no kernel has the fault {', '.join(sorted(missing))}"
        assert hasattr(module, "kernel") or module.ENTRY.planted, f"{number}: re-enacted nowhere"


def settled(page):
    """A page without what the order of sums on a processor may change: cosines, and what is said of a place."""
    rows = [row.split(" | ") for row in page.splitlines()]
    rows = [row[:11] + row[12:] if len(row) == 14 else row for row in rows]
    return [re.sub(r"[01]\.\d{3}", "#", " | ".join(row)) for row in rows]


def test_the_page_is_that_of_the_entries():
    assert settled(PAGE.read_text()) == settled(text()), "run python zoo/page.py"
