"""Where apportion meets other frameworks; each module imports its own."""
