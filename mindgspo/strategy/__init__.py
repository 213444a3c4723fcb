"""MindSpore strategy files by the layout algebra alone. Public: `file`, `layouts`, `commands`."""
