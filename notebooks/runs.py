"""Finds the run that a notebook shows."""

import os
from pathlib import Path

import polars as pl


def load(experiment):
    """Folder, `summary.parquet` and `records.parquet` of a run: the folder that ULPLAB_RUN names, or the newest run of the
    experiment below `runs/` here or in a folder above (runs are named by their time).

    Raises FileNotFoundError, with the command that makes a run, if there is none.
    """
    folders = [folder / "runs" / experiment for folder in [Path.cwd(), *Path.cwd().parents]]
    found = [file.parent for folder in folders for file in sorted(folder.glob("*/summary.parquet"), reverse=True)]
    run = Path(os.environ["ULPLAB_RUN"]) if os.environ.get("ULPLAB_RUN") else next(iter(found), None)
    command = f"ulplab sweep {experiment}"
    if run is None:
        raise FileNotFoundError(f"no run of {experiment} in {folders[0]} or above; make one with `{command}`, or set ULPLAB_RUN")
    for name in ["summary.parquet", "records.parquet"]:
        if not (run / name).is_file():
            raise FileNotFoundError(f"{run} has no {name}: it is not a finished run; make one with `{command}`")
    return run, pl.read_parquet(run / "summary.parquet"), pl.read_parquet(run / "records.parquet")
