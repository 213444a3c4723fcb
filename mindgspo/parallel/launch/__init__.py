"""Starts the workers of a run, watches them, and tells the truth when one fails. Door: `launcher.launch`; in a worker
`worker.run_worker`, and `heartbeat` for whoever makes progress."""
