#!/usr/bin/env python3
"""Measure how long a command leaves a person without a line, as one line of JSON.

    python tools/bench_silence.py mindgspo run quickstart trainer.max_steps=4

Its output, standard error included, goes on to standard error; there is no terminal, so no bar counts. longest_pause_s
is the longest time without output, from the start of the process to its end, and before_pause what was said last before
it; pauses_over_10_s how many there were of more than 10 seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(command: list[str]) -> int:
    """Run the command, print the figures, and return its exit code."""
    started = said = time.monotonic()
    last, pauses = "", []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    while True:
        text = os.read(process.stdout.fileno(), 1 << 16)
        pauses.append((time.monotonic() - said, last))
        said = time.monotonic()
        if not text:
            break
        sys.stderr.buffer.write(text)
        sys.stderr.flush()
        lines = text.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else last
    code = process.wait()
    longest, before = max(pauses)
    figures = {
        "command": command,
        "seconds": round(said - started, 1),
        "longest_pause_s": round(longest, 1),
        "before_pause": before,
        "pauses_over_10_s": sum(pause > 10 for pause, _ in pauses),
    }
    print(json.dumps(figures, ensure_ascii=False))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
