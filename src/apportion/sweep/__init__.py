"""Sweeps: many runs that differ in n, B_p, learning rate, allocator and seed, to plan from."""
