"""Allocators side by side on exact ground: the arms, the runs, the tables."""
