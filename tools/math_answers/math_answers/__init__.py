"""Where in a response its answer stands, and whether it is the gold answer.

Pure Python and linear in the text, but for `symbolic`, which is for a process that may be killed. Three questions have
an entry each: `numeric.check_number`, `expressions.check_expression`, `choices.check_choice`; all return a
`findings.Finding`. Their parts are useful alone: `extract.find_answer` and `equivalence.compare_answers`.
"""
