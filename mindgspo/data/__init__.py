"""Rows of files or of the generated task -> prepared data sets -> prompts in a resumable order; batches.

MindSpore is imported only when a MindRecord file is written or read.
"""
