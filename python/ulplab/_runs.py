"""Numbers of a stored run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars


def records(run: str | os.PathLike[str]) -> polars.DataFrame:
    """All records of a finished run as a polars frame, a number a row; docs/records.md has the columns.

    ``run`` is the folder that ``ulplab sweep`` wrote. Needs polars: ``pip install 'ulplab[query]'``.

    Raises ImportError without polars, and FileNotFoundError if the folder is not a finished run.
    """
    try:
        import polars
    except ImportError as error:
        raise ImportError("ulplab.records needs polars: pip install 'ulplab[query]'") from error
    file = Path(run) / "records.parquet"
    if not file.is_file():
        raise FileNotFoundError(f"{run}: there is no records.parquet; expected the folder of a finished run, as `ulplab sweep` writes it")
    return polars.read_parquet(file)
