"""Programs in Python that are judged by tests. The policy writes a program, is told how its first tests ended, and
writes a better one.

A row's extra_info has "tests", a list of [standard input, expected output], and "num_public": so many of them, from
the first, the policy may be told about. The others stay hidden, and are run once those pass; the reward is the share of
them that the last program passes. Programs run in `sandbox`, see there what it needs, and their output is compared
here, where they cannot reach.
"""

import re
import time

import sandbox

from mindgspo.environments import End, Environment, Row, Turn

LIMITS = sandbox.Limits(seconds=5.0)
SECONDS = 20.0
"""For all tests of a turn; those that are left then count as failed. environment.workers.timeout_s must be longer."""
MOST_SHOWN = 300
"""Characters of an input or output that the policy is shown."""
OTHERS_FAIL = "The tests that you know pass, but others fail. Write a better program."


class Programs(Environment):
    is_confined = True

    def reset(self, row: Row, seed: int) -> None:
        reason = sandbox.available() if self.is_confined else None
        if reason is not None:
            raise RuntimeError(
                f"programs cannot be confined here: {reason} (programs.py:UnsafePrograms runs them without a sandbox)"
            )
        self.tests = checked_tests(row.extra_info.get("tests"))
        num_public = row.extra_info.get("num_public", 0)
        if not isinstance(num_public, int) or not 0 <= num_public < len(self.tests):
            raise ValueError(f"num_public: {num_public!r}; of {len(self.tests)} tests at least one stays hidden")
        self.num_public = num_public
        self.share = 0.0

    def step(self, turn: Turn) -> str | End:
        program, until = last_program(turn.text), time.monotonic() + SECONDS
        known, hidden = self.tests[: self.num_public], self.tests[self.num_public :]
        self.share = 0.0
        for stdin, expected in known:
            ran = self.run(program, stdin, until)
            if not is_right(ran, expected):
                return told(ran, stdin, expected)
        passed = [is_right(self.run(program, stdin, until), expected) for stdin, expected in hidden]
        self.share = sum(passed) / len(passed)
        if all(passed):
            return End(reward=1.0, is_correct=True, info={"programs": turn.number})
        return OTHERS_FAIL

    def cut(self, reason: str) -> End:
        return End(reward=self.share, is_correct=False)

    def run(self, program: str, stdin: str, until: float) -> sandbox.Ran:
        """What becomes of the program by `until`."""
        seconds = min(LIMITS.seconds, until - time.monotonic())
        if seconds < LIMITS.seconds / 2:
            return sandbox.Ran(output="", errors="", problem=f"was not run: all tests may take {SECONDS:g} s")
        return sandbox.run(program, stdin, limits=LIMITS, is_confined=self.is_confined)


class UnsafePrograms(Programs):
    """Without a sandbox: programs have the rights of this process. For a machine that has nothing to lose."""

    is_confined = False


def checked_tests(tests: object) -> list[list[str]]:
    """The tests of a row. Raises ValueError for anything but pairs of text."""
    if isinstance(tests, list) and tests:
        are_text = [isinstance(one, list) and [type(text) for text in one] == [str, str] for one in tests]
        if all(are_text):
            return tests
    raise ValueError(f"extra_info has tests {tests!r:.80}; expected a list of [standard input, expected output]")


def last_program(text: str) -> str:
    """The last block of Python in a turn, or the whole turn."""
    blocks = re.findall(r"```(?:python|py)[ \t]*\n(.*?)```", text, re.DOTALL)
    return blocks[-1] if blocks else text


def is_right(ran: sandbox.Ran, expected: str) -> bool:
    """Whether it printed what is expected, white space at the ends of lines aside, and ended well."""
    printed, wanted = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (ran.output, expected))
    return not ran.problem and printed == wanted


def told(ran: sandbox.Ran, stdin: str, expected: str) -> str:
    """What the policy learns of a test that failed."""
    error = ran.errors.rstrip().rpartition("\n")[2] if ran.problem else ""
    parts = {"Input": stdin, "Expected": expected, "Printed": ran.output, "Error": error, "The program": ran.problem}
    lines = [f"{name}: {shown(text)}" for name, text in parts.items() if text or name == "Printed"]
    return "\n".join(["A test failed.", *lines])


def shown(text: str) -> str:
    """The text, which may lack its end."""
    text = text.rstrip()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
