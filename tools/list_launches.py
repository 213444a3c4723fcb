"""Lists the operators of CANN that jobs launch, for `mindgspo doctor` to look up on a real server.

    ASCEND_EMULATOR_LAUNCHES=dense.txt mindgspo run EXPERIMENT --emulate-ascend
    python tools/list_launches.py "every run=dense.txt" "mixtures of experts=experts.txt" [--out FILE]

Each file was filled by jobs on emulated cards. An operator is listed under the first kind of job that has it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

TABLE = Path(__file__).resolve().parents[1] / "mindgspo" / "doctor" / "launches.yaml"
HEADER = """\
# Operators of CANN that jobs on emulated cards launched, by the first kind of job that has them: aclnn functions, and
# operators of the graph engine with their inputs' dtypes, equal neighbours once. Made by tools/list_launches.py.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="KIND=FILE")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    table: dict[str, dict[str, list[str]]] = {}
    listed: set[str] = set()
    for job in arguments.jobs:
        kind, _, path = job.partition("=")
        lines = set(Path(path).read_text(encoding="ascii").splitlines()) - listed
        listed |= lines
        table[kind] = {
            "aclnn": sorted(line for line in lines if line.startswith("aclnn")),
            "aclop": sorted(line.removeprefix("aclop:") for line in lines if line.startswith("aclop:")),
        }
    text = yaml.safe_dump(table, sort_keys=False, default_flow_style=None, width=120)
    arguments.out.write_text(HEADER + text, encoding="utf-8")
    print(f"{arguments.out}: {sum(len(names) for kinds in table.values() for names in kinds.values())} operators")


if __name__ == "__main__":
    main()
