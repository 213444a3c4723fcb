"""Starts a worker script on emulated cards, as `mindgspo run --emulate-ascend` starts its workers; or on CPU.

usage: launch_cards.py NUM_CARDS LOG_DIR SCRIPT [ARGUMENT...]; $WATCH: fields of WatchSection as JSON;
$DEVICE: CPU, or else cards.
"""

import json
import os
import sys
from pathlib import Path

from ascend_emulator.launcher import enter_emulated_cards
from mindgspo.config.schema import WatchSection
from mindgspo.launch.launcher import launch

if __name__ == "__main__":
    if os.environ.get("DEVICE") != "CPU":
        enter_emulated_cards()
    num_cards, log_dir, *command = sys.argv[1:]
    watch = WatchSection(**json.loads(os.environ.get("WATCH", "{}")))
    sys.exit(launch(command, num_workers=int(num_cards), log_dir=Path(log_dir), watch=watch))
