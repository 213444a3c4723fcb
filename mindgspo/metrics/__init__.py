"""Metrics: the glossary of names, what a run writes while it trains, its diagnosis, plots and report. No MindSpore."""

from __future__ import annotations

from mindgspo.metrics.diagnosis import verdict_lines
from mindgspo.metrics.files import read_summary, write_summary
from mindgspo.metrics.glossary import unknown_names
from mindgspo.metrics.group_metrics import group_metrics
from mindgspo.metrics.plot import plot_run
from mindgspo.metrics.report import report_of_finished, write_report
from mindgspo.metrics.run_log import RunLog, SilentLog
from mindgspo.metrics.timers import Timers, peak_rss_mb, rss_gb

__all__ = [
    "RunLog",
    "SilentLog",
    "Timers",
    "group_metrics",
    "peak_rss_mb",
    "plot_run",
    "read_summary",
    "report_of_finished",
    "rss_gb",
    "unknown_names",
    "verdict_lines",
    "write_report",
    "write_summary",
]
