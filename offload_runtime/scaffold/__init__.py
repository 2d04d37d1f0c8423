"""First versions of files that people go on to edit: a policy, and an adapter of a training script. No torch."""
