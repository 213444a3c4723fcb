"""Runs the launcher as the command line would: python launch_toy.py OPTIONS-AS-JSON LOG_DIR COMMAND..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mindgspo.config.schema import WatchSection
from mindgspo.errors import MindGSPOError
from mindgspo.launch import watch
from mindgspo.launch.launcher import launch

assert "mindspore" not in sys.modules
watch.REPORT_MEETING_S = 300.0  # a busy machine may take half a minute: what is said then belongs to no test

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    section = WatchSection(**options.pop("watch", {}))
    try:
        sys.exit(launch(sys.argv[3:], log_dir=Path(sys.argv[2]), watch=section, **options))
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
