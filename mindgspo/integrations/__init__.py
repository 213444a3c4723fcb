"""Neighbours: what other suites bring, and what we bring to them. One folder or module per neighbour.

    foreign_configs  settings of MindFormers, MindRLHF and verl -> this project's YAML
    mindformers      its Qwen2 and Llama as a second model backend and a second judge

The door opens without MindSpore and without any neighbour.
"""
