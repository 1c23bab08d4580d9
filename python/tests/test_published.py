"""The gates of examples/audit let pass the faults that docs/python.md lists."""

import importlib.util
from pathlib import Path

import pytest

AUDIT = Path(__file__).resolve().parents[2] / "examples" / "audit"


@pytest.fixture(scope="module")
def found(run):
    return run.survivors()


@pytest.fixture(scope="module")
def run():
    import sys

    sys.path.insert(0, str(AUDIT))
    try:
        spec = importlib.util.spec_from_file_location("audit_run", AUDIT / "run.py")
        run = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(run)
        return run
    finally:
        sys.path.remove(str(AUDIT))


def test_products_that_are_right_are_refused_and_wrong_ones_pass(run):
    """Of 60 seeds, how many pass with a right alpha, and with one that is 5 % and 9 % too large."""
    passed = [list(one.values()) for one in run.products().values()]
    assert passed == [[59, 54, 42], [50, 36, 14], [26, 15, 8], [16, 10, 5], [60, 60, 60]]


def test_what_is_right_passes(found):
    assert all(right for right, _, _ in found.values())


@pytest.mark.parametrize(
    ("gate", "kept"),
    [
        ("vLLM test_rms_norm, bf16, H = 768", []),
        ("vLLM test_rms_norm, bf16, H = 5120", ["no_variance", "half_of_row", "neighbour_row"]),
        ("vLLM test_rms_norm, bf16, H = 8192", ["no_variance", "half_of_row", "neighbour_row"]),
        ("FlashInfer test_norm_quant, scale 1", ["2 times too large", "100 times too large", "every output +-448", "no variance"]),
        ("FlashInfer trace rmsnorm_quant, scale 1", ["2 times too large", "no variance", "all zeros"]),
        (
            "FlashInfer trace mxfp8_quantize",
            [
                "columns reversed",
                "all signs lost",
                "constant",
                "scales 2 times too large",
                "scales 1.5 times too small, top of blocks saturates",
                "scale of the next block",
                "scales not written",
                "rows exchanged",
            ],
        ),
        (
            "vLLM test_reshape_and_cache_flash[nvfp4]",
            ["scales of a row replaced by their mean", "one scale for all blocks", "5 % too large", "20 % too large"],
        ),
        ("vLLM NVFP4 product, fp16", ["alpha 5 % too large", "alpha 9 % too large"]),
    ],
)
def test_what_passes(found, gate, kept):
    assert found[gate][1] == kept


def test_nearly_everything_passes_where_one_percent_may_be_wrong(found):
    _, kept, noticed = found["SGLang test_cutedsl_gdn_precision, B = 16"]
    assert len(kept) == 8 and noticed == ["all zeros"]
