"""The errors a user of mindgspo can act on.

Every class also inherits the built-in it refines, so `except ValueError` keeps working. Raise one of these
for a user's mistake, naming the file or key, the rule, the numbers and the nearest fix; an invariant of ours
is an `assert`. To add a class, give it a stdlib parent and a first line that says whose mistake it is.
"""

from __future__ import annotations


class MindGSPOError(Exception):
    """Base of all errors that the command line prints as one message instead of a traceback."""


class ConfigError(MindGSPOError, ValueError):
    """The experiment's YAML or a `--set` override is wrong: unknown key, wrong type, impossible combination."""


class DataError(MindGSPOError, ValueError):
    """A data file or a row of it cannot be used: missing, empty, without an answer, overlong, other tokenizer."""


class RewardError(MindGSPOError, RuntimeError):
    """A user's reward function cannot be loaded, has another signature, or returns something that is no reward."""


class TokenizerError(MindGSPOError, ValueError):
    """A tokenizer's files are missing or contradict the configuration."""


class WeightsError(MindGSPOError, ValueError):
    """A weight file is missing, truncated, or its names or shapes do not match the model."""


class CheckpointError(MindGSPOError, RuntimeError):
    """A checkpoint cannot be written or read, or belongs to another run."""


class RunFolderError(MindGSPOError, RuntimeError):
    """The run folder is in a state that this command must not touch."""


class WriteError(MindGSPOError, OSError):
    """A file cannot be written: the disk is full or read-only, or the user has no right to."""


class TrainingError(MindGSPOError, RuntimeError):
    """Training cannot go on: non-finite loss, a failed self-check, fewer steps than asked."""


class RolloutError(MindGSPOError, RuntimeError):
    """A server that generates or scores cannot be reached, stops, or answers with what it was not asked for."""


class NonFiniteError(TrainingError):
    """The loss or the gradient of an update is not finite; weights and optimizer are as before it."""


class OutOfMemoryError(MindGSPOError, MemoryError):
    """The system gave no memory, or no thread, to this process."""

    @classmethod
    def of(cls, error: BaseException) -> OutOfMemoryError:
        """Says where an exception of Python's or numpy's came from."""
        at, trace = "", error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if "mindgspo" in code.co_filename:
                at = f" in {code.co_name} ({code.co_filename}, line {trace.tb_lineno})"
            trace = trace.tb_next
        detail = f": {error}" if str(error) else ""
        return cls(
            f"out of memory{at}{detail}; use a machine or container with more, raise a limit that is set (ulimit -v), "
            "or lower rollout.slots, trainer.samples_per_micro_batch or the model's size"
        )


class DryRunUnavailable(MindGSPOError, RuntimeError):  # noqa: N818  (says what it is; nothing went wrong)
    """This machine cannot compile for Ascend: another platform or MindSpore than the tested ones, no compiler."""


class DryRunError(MindGSPOError, RuntimeError):
    """A dry run cannot begin: unknown rank or graph, a folder that cannot be written, a C compiler that fails."""
