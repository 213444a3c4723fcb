"""A table applied to the settings of one file.

What enters: a `Table`, a `Reading`. What leaves: the draft, filled. Called by the suites' modules.
"""

from __future__ import annotations

from dataclasses import replace

from mindgspo.integrations.foreign_configs.draft import Draft
from mindgspo.integrations.foreign_configs.given import Given
from mindgspo.integrations.foreign_configs.reading import Finding, Reading
from mindgspo.integrations.foreign_configs.table import ABSENT, Fate, Table


def given_of(table: Table, reading: Reading, name: str) -> Given:
    """The settings of a file, its suite's own defaults behind them; none for a key that could not be read."""
    return Given(reading.values, lambda key: None if key in reading.unread_keys else table.default(key), name)


def apply(table: Table, reading: Reading, name: str, draft: Draft, *, with_defaults: bool = True) -> Given:
    """Every key of the file becomes a finding, and a value where it has one here; then the suite's own defaults."""
    given = given_of(table, reading, name)
    draft.findings += [replace(finding, file=name) for finding in reading.findings]
    for key, value in reading.values.items():
        row = table.find(key)
        if row is None:
            close = table.closest(key)
            text = f"did you mean {close}?" if close else ""
            draft.findings.append(Finding(fate=Fate.UNKNOWN, source=key, value=value, text=text, file=name))
        else:
            draft.take(row, value, row.outcome(value, given), source=key, file=name)
    if with_defaults:
        for row in table.rows:
            if row.default is not ABSENT and row.source not in given and row.source not in reading.unread_keys:
                draft.take_default(row, row.outcome(row.default, given))
    return given
