"""Division of a model: ranks of a plan, the placement of a process in it, layouts of parameters."""
