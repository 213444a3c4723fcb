"""MindFormers' legacy `LlamaForCausalLM` (Qwen2, Qwen2.5, Llama) in the place of our transformer.

    installation  is MindFormers here, and the right one; imports it without its side effects
    settings      our model section -> the arguments of its LlamaConfig; pure Python
    model         the cell that updates, scorers, checkpoints and exports take for our own
    judge         log-probs of rows by MindFormers' whole forward pass, none of our cells in it

What is imported from here needs neither MindSpore nor MindFormers. MindFormers 1.9.0 wants MindSpore 2.9.0, hence an
environment of its own: docs/integrations.md says how to make one.
"""

from mindgspo.integrations.mindformers.installation import require_mindformers
from mindgspo.integrations.mindformers.judge import log_probs_by_mindformers
from mindgspo.integrations.mindformers.settings import llama_settings

__all__ = ["llama_settings", "log_probs_by_mindformers", "require_mindformers"]
