"""Bit-equal log-probs on an emulated card; prints a line of JSON: {case: tokens that are equal, or the error}.

usage: exact_on_card.py
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from ascend_emulator.launcher import enter_emulated_cards

if __name__ == "__main__":
    enter_emulated_cards()
    sys.path[:0] = [str(Path(__file__).parents[2])]
    from exact_cases import PACKED, make_case
    from small_plans import MIXTURE

    from mindgspo.errors import TrainingError
    from mindgspo.parallel.platform import runtime

    runtime.set_up_runtime("Ascend")
    one, experts = {"num_hidden_layers": 1}, {**MIXTURE, "head_dim": 16}
    in_one_row, crowded = replace(PACKED, in_one_row=True), {"num_blocks": 4, "block": 16}
    cases = {
        "one layer, packed rows": {**one, "layout": in_one_row},
        "one layer, float16, continued": {**one, "dtype": "float16", "prefixes": 7},
        "one layer, mixture, pre-empted": {**one, **experts, "sampler": crowded},
        "two layers": {},
        "two layers, mixture, float16": {**experts, "dtype": "float16"},
    }
    found = {}
    for name, changes in cases.items():
        case = make_case(**{"hidden_size": 64, "dtype": "bfloat16", **changes})  # heads of 16
        assert (case.preemptions > 0) == ("sampler" in changes), name
        try:
            found[name] = case.require()
        except TrainingError as error:
            found[name] = str(error)
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)
