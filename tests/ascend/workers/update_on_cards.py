"""`update_over_ranks.py` on emulated cards; usage: see there and launch_cards.py."""

import sys
from pathlib import Path

from ascend_emulator.launcher import enter_emulated_cards
from mindgspo.launch.worker import run_worker


def work() -> int:
    from update_over_ranks import body

    return body(Path(sys.argv[1]), "Ascend")


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / "distributed" / "workers")]
    enter_emulated_cards()
    run_worker(work)
