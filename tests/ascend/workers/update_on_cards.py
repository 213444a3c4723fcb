"""`update_over_ranks.py` on emulated cards; usage: see there and launch_cards.py."""

import sys
from functools import partial
from pathlib import Path

from ascend_emulator.launcher import enter_emulated_cards

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / "distributed" / "workers")]
    enter_emulated_cards()
    from joined_ranks import run_joined
    from update_over_ranks import body

    run_joined(partial(body, device="Ascend"), "Ascend")
