"""Records of a stored run."""

import sys

import pytest

import ulplab


def test_records_are_a_frame(tmp_path):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"recipe": ["a", "b"], "metric": ["kl", "kl"], "value": [0.5, float("nan")]})
    frame.write_parquet(tmp_path / "records.parquet")
    found = ulplab.records(tmp_path)
    assert found.equals(frame)
    assert found.filter(polars.col("recipe") == "a")["value"].max() == 0.5


def test_what_is_no_finished_run_is_named(tmp_path):
    pytest.importorskip("polars")
    with pytest.raises(FileNotFoundError, match="there is no records.parquet; expected the folder of a finished run"):
        ulplab.records(tmp_path)


def test_without_polars_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"pip install 'ulplab\[query\]'"):
        ulplab.records(tmp_path)
