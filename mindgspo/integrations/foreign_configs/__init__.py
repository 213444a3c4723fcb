"""Configurations of other suites as experiments of this one: MindFormers, MindRLHF, verl.

    sources  ->  apply (tables of rows)  ->  draft  ->  document, report
    (verl_source, yaml_source)  verl_*, mindformers_*, mindrlhf_*

Each suite has one table: key there, key here, how, and why not. Pure Python; nothing of a foreign file is run.
"""

from mindgspo.integrations.foreign_configs.convert import TABLES, Conversion, convert
from mindgspo.integrations.foreign_configs.document import save_new
from mindgspo.integrations.foreign_configs.report import report_lines

__all__ = ["TABLES", "Conversion", "convert", "report_lines", "save_new"]
