"""MindSpore strategy files by the layout algebra alone. Door: `file`, `layouts`, `compare`, `fit`."""
