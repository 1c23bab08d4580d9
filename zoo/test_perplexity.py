"""The stored perplexities are those of the entries as they are: `pytest zoo`."""

import pytest
from entry import entries
from perplexity import digest, measured, plain, row, stored
from places import DENSE, HYBRID, MIXTURE, PLACES

MODULES = {number: module for number, module in entries("faults").items() if hasattr(module, "kernel")}
#: A window that is short, for what is measured again here.
SHORT = 64


def test_every_entry_has_a_row_or_a_reason():
    rows = stored()["rows"]
    assert list(rows) == list(MODULES), "run python zoo/perplexity.py"
    for number, module in MODULES.items():
        reasons = {kind: getattr(module.ENTRY, kind) for kind in ("silent", "absent")}
        said = [number in PLACES, *map(bool, reasons.values())]
        assert sum(said) == 1, f"{number}: no place in zoo/places.py and no reason in its ENTRY, or several"
        for kind, reason in reasons.items():
            assert rows[number].get(kind, "") == reason, f"{number}: run python zoo/perplexity.py {number}"


@pytest.mark.parametrize("number", MODULES)
def test_a_row_is_of_the_entry_as_it_is(number):
    assert stored()["rows"][number]["digest"] == digest(MODULES[number]), f"run python zoo/perplexity.py {number}"


@pytest.mark.parametrize("name", [DENSE, MIXTURE, HYBRID])
def test_a_model_has_the_stored_loss(name):
    assert plain(name) == pytest.approx(stored()["nats_per_byte"][name], abs=2e-4)


@pytest.mark.parametrize("number", [number for number in MODULES if number in PLACES])
def test_a_kernel_without_its_fault_gives_the_loss_of_the_model(number):
    model, formatted = PLACES[number][0], MODULES[number].ENTRY.format
    without = measured(MODULES[number], False, SHORT).mean()
    assert without == pytest.approx(plain(model, SHORT), abs=0.2 if formatted else 0.01)


@pytest.mark.parametrize("number", ["A6", "M10", "N3"])
def test_a_fault_moves_the_loss_as_stored(number):
    found, kept = row(MODULES[number], stored()["nats_per_byte"]), stored()["rows"][number]
    for name in ("without_fault", "with_fault", "standard_error"):
        assert found[name] == pytest.approx(kept[name], abs=2e-3), f"{number}: run python zoo/perplexity.py {number}"
