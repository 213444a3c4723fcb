"""What is resident in which phase of a step, and where the rest waits. Door: `swap.open_swap`, `states`."""
