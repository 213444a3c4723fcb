"""`mindgspo init`: from a model folder and a file of questions to an experiment that fits the machine.

Works without MindSpore, and executes none of the user's files.
"""
