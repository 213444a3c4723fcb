"""Metrics room: names and their glossary, what a run writes while it trains, its summary, plot and report.

What enters: flat metrics, groups, timings. What leaves: metrics.jsonl, samples.jsonl, summary.json,
reward.png, report.html in the run folder. No MindSpore; matplotlib, jinja2 templates and tensorboardX load
only when used.
"""

from __future__ import annotations

from mindgspo.metrics.group_metrics import group_metrics
from mindgspo.metrics.names import METRICS, MetricInfo, unknown_names
from mindgspo.metrics.plot import plot_run
from mindgspo.metrics.report import write_report
from mindgspo.metrics.sinks import RunLog, SilentLog
from mindgspo.metrics.summary import read_summary, write_summary
from mindgspo.metrics.timers import Timers, peak_rss_mb, rss_gb
from mindgspo.metrics.verdict import verdict_lines

__all__ = [
    "METRICS",
    "MetricInfo",
    "RunLog",
    "SilentLog",
    "Timers",
    "group_metrics",
    "peak_rss_mb",
    "plot_run",
    "read_summary",
    "rss_gb",
    "unknown_names",
    "verdict_lines",
    "write_report",
    "write_summary",
]
