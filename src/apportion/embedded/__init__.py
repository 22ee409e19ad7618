"""The embedded language model and its world: tasks, pools, exact success and gradient, a sampler.

Nothing is imported here, so that the tasks and the pools can be used without torch.
"""
