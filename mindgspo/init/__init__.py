"""`mindgspo init`: from a model folder and a file of questions to an experiment that fits the machine.

Without MindSpore; nothing of the user's files is executed.
"""
