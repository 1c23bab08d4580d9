"""``pytest --ulplab-report DIR``: what all assertions said, as a page, as JSON lines, and in the properties of JUnit."""

from __future__ import annotations

import html
import json
import os
from typing import Any

import pytest

from . import _records

_KEY = "ulplab_records"
_ORDER = {"failed": 0, "warning": 1, "not judged": 2, "passed": 3}

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid #d8dee4 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px }
code { font-size: 13px; overflow-wrap: anywhere } .failed { color: #a40e26; font-weight: 600 } .warning { color: #7d4e00; font-weight: 600 }
.passed { color: #116329 } .bar { display: block; height: 4px; background: currentColor; border-radius: 2px; margin-top: 4px }
"""


def _ratio(record: dict[str, Any]) -> float:
    ratio = record["ratio"]
    return float("inf") if ratio == "infinite" else -1.0 if ratio is None else ratio


def page(records: list[dict[str, Any]]) -> str:
    """The report as HTML: what failed first, then by how much of its bound an assertion used."""
    counts = {verdict: sum(record["verdict"] == verdict for record in records) for verdict in _ORDER}
    rows = []
    for record in sorted(records, key=lambda record: (_ORDER[record["verdict"]], -_ratio(record), record["test"])):
        ratio = record["ratio"]
        shown = "" if ratio is None else "infinite" if ratio == "infinite" else f"{ratio:.3g}"
        # The bar is the share of the bound that is used.
        bar = f'<span class="bar" style="width: {min(1.0, _ratio(record)) * 100:.0f}%"></span>' if shown else ""
        said = f"<pre>{html.escape(record['message'])}</pre>" if record["message"] else ""
        if "reproduce" in record:
            said += f'<p><a href="{html.escape(record["capsule"])}">inputs</a> <code>{html.escape(record["reproduce"])}</code></p>'
        if "capsule_error" in record:
            said += f"<p>inputs were not kept: {html.escape(record['capsule_error'])}</p>"
        rows.append(
            f'<tr><td class="{record["verdict"]}">{record["verdict"]}</td><td><code>{html.escape(record["test"])}</code><br>'
            f"<small>{html.escape(record['where'])}</small></td><td>{html.escape(record['asked'])}</td>"
            f'<td class="number {record["verdict"]}">{shown}{bar}</td><td>{said}</td></tr>'
        )
    summary = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items() if count or verdict != "not judged")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ulplab: {summary}</title><style>{_STYLE}</style></head><body>'
        f"<h1>Assertions: {summary}</h1><table><thead><tr><th>Verdict</th><th>Test</th><th>Asked</th>"
        "<th>Error / bound</th><th>What was said</th>"
        f"</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table></body></html>\n"
    )


class Reporter:
    """Keeps what assertions say while the session runs, and writes it in the end."""

    def __init__(self, config: pytest.Config, folder: str) -> None:
        self.config = config
        # Workers of pytest-xdist have the same folder as their controller, wherever they run.
        self.folder = os.path.join(str(config.invocation_params.dir), folder)
        try:
            self.recorder = _records.Recorder(self.folder)
        except OSError as error:
            raise pytest.UsageError(f"--ulplab-report {folder}: {error}") from error
        self.records: list[dict[str, Any]] = []
        _records.start(self.recorder)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        first = len(self.recorder.records)
        self.recorder.test = item.nodeid
        self._first = first
        yield
        self.recorder.test = ""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        if call.when == "call":
            mine = self.recorder.records[self._first :]
            # What `record_property` adds to.
            for at, record in enumerate(mine):
                prefix = f"ulplab.{at}" if len(mine) > 1 else "ulplab"
                item.user_properties.append((f"{prefix}.{record['name']}", f"{record['verdict']}: {record['asked']}"))
                if record["ratio"] is not None:
                    item.user_properties.append((f"{prefix}.ratio", record["ratio"]))
                if "capsule" in record:
                    item.user_properties.append((f"{prefix}.capsule", record["capsule"]))
        yield

    def pytest_sessionfinish(self) -> None:
        _records.start(None)
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = json.dumps(self.recorder.records)
            return
        self.records += self.recorder.records
        with open(os.path.join(self.folder, "assertions.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in self.records)
        with open(os.path.join(self.folder, "index.html"), "w", encoding="utf-8") as file:
            file.write(page(self.records))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self.records += json.loads(getattr(node, "workeroutput", {}).get(_KEY, "[]"))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("ulplab report")
        failed = [record for record in self.records if record["verdict"] == "failed"]
        terminalreporter.write_line(
            f"{len(self.records):,} assertions, {len(failed):,} failed: {os.path.join(self.folder, 'index.html')}"
        )
        for record in failed:
            terminalreporter.write_line(
                record.get("reproduce", f"{record['test']}: inputs were not kept: {record.get('capsule_error')}")
            )
