"""What is resident in which phase of a step, and where the rest waits. Public: `swap.open_swap`, `states`."""
