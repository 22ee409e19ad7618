"""How a run's budget is best spent: learning curves, their frontier, laws of n*, and a plan."""
