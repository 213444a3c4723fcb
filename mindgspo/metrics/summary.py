"""summary.json: the run's headline numbers, written by the trainer at its end, read by report and scripts."""

from __future__ import annotations

import json
from pathlib import Path

from mindgspo.errors import RunFolderError
from mindgspo.metrics.files import SUMMARY_FILE, plain_number, replace_file


def write_summary(run_dir: Path, **fields: float | int | str | bool | None) -> Path:
    """Write `fields` as summary.json, replacing an older one as a whole.

    Usual fields: accuracy_before, accuracy_after (shares), steps, seconds, tokens_per_second, peak_rss_mb. A
    number that is not finite is an assertion error naming it; None is written as null (not measured).
    """
    record = {
        key: value if value is None or isinstance(value, (str, bool)) else plain_number(key, value)
        for key, value in fields.items()
    }
    path = Path(run_dir) / SUMMARY_FILE
    replace_file(path, (json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def read_summary(run_dir: Path) -> dict[str, object]:
    """The fields of summary.json; {} while the run has not ended. RunFolderError if the file is not JSON."""
    path = Path(run_dir) / SUMMARY_FILE
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(f"{path}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise RunFolderError(f"{path}: expected an object, got {type(record).__name__}")
    return record
