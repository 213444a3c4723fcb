"""Configurations of other suites as experiments of this one: MindFormers, MindRLHF, MindSpeed-RL, TRL, verl.

    sources (shell, YAML) -> tables, one per suite -> experiment -> YAML and report (convert)

Pure Python; nothing of a foreign file is run.
"""
