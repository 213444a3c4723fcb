"""How a model is divided: ranks of a plan, a process's place in it, layouts of parameters."""
