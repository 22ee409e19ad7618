"""What `apportion train` does: a configuration, a task, a run through TRL, arms side by side."""
