"""What a set of runs cannot tell, in plain words, with the run that would tell it.

A larger n at the same prompts per step means a larger batch, by the usual rule a larger learning
rate, and fewer passes over the data for the same compute. Where these go together, the sweep cannot
say which of them pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from apportion.plan.runs import Cell

_READING = (
    "If its ceiling is the same, n only stood in for the rate and fresh prompts: add prompts or "
    "tune the rate instead of paying for n."
)
_FEW_EVALUATIONS = 6
_APART = 0.2
_FEW_SIZES = 3


def cautions(cells: Sequence[Cell]) -> list[str]:
    """Return what stands against conclusions from these runs, most serious first.

    Args:
        cells: settings with their runs, see `apportion.plan.runs.cells_of`.
    """
    checks: tuple[Callable[[Sequence[Cell]], str], ...] = (
        _other_data,
        _one_size,
        _filtered,
        _bound_to_prompts,
        _bound_to_rate,
        _one_seed,
        _few_sizes,
        _few_evaluations,
    )
    return [found for check in checks if (found := check(cells))]


def passes(cell: Cell, compute: float) -> float | None:
    """Return how often a setting has gone over its prompts: ``C / (n D)``; None without D.

    Source: IsoCompute Playbook, where a larger n paid after 0.8 to 1.3 passes of its own.
    """
    num = cell.runs[0].num_prompts
    return None if num is None else compute / (cell.rollouts_per_prompt * num)


def discriminating_run(cells: Sequence[Cell]) -> str:
    """Name the run that tells n from the learning rate: n/4 at the largest n's own rate."""
    largest = max(cells, key=lambda cell: (cell.rollouts_per_prompt, cell.batch))
    rate = largest.learning_rate
    at = "not scaled down" if rate is None else f"{rate:g}"
    return (
        f"run n = {max(largest.rollouts_per_prompt // 4, 2)} at {largest.prompts_per_step} prompts "
        f"a step with the learning rate of n = {largest.rollouts_per_prompt}, {at}"
    )


def _sizes(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell.rollouts_per_prompt for cell in cells})


def _only_value(
    cells: Sequence[Cell], value_of: Callable[[Cell], float | None]
) -> list[float | None] | None:
    """Return the one value that each n was run with, in order of n; None if some had several."""
    of_size = [
        {value_of(cell) for cell in cells if cell.rollouts_per_prompt == n} for n in _sizes(cells)
    ]
    return [next(iter(found)) for found in of_size] if all(len(f) == 1 for f in of_size) else None


def _other_data(cells: Sequence[Cell]) -> str:
    """Look at how far apart runs begin: the same model on the same problems begins alike."""
    first = {run.name: float(run.reward_T[0]) for cell in cells for run in cell.runs}
    low, high = min(first, key=first.__getitem__), max(first, key=first.__getitem__)
    if first[high] - first[low] < _APART:
        return ""
    return (
        f"The runs begin far apart, {low} at {first[low]:.3f} and {high} at {first[high]:.3f}. If "
        "they are of different models or problems, fit them apart."
    )


def _one_size(cells: Sequence[Cell]) -> str:
    sizes = _sizes(cells)
    if len(sizes) > 1:
        return ""
    n = sizes[0]
    low, high = max(n // 4, 2), 4 * n
    return (
        f"All runs have n = {n}, so nothing is known of other n. Add runs with n = {low} and "
        f"n = {high}, of the same compute."
    )


def _few_sizes(cells: Sequence[Cell]) -> str:
    sizes = _sizes(cells)
    if not 1 < len(sizes) < _FEW_SIZES:
        return ""
    return (
        f"Only n = {' and '.join(map(str, sizes))} were run: a law needs {_FEW_SIZES} or more. "
        f"Add n = {4 * sizes[-1]}."
    )


def _filtered(cells: Sequence[Cell]) -> str:
    names = [run.name for cell in cells for run in cell.runs if run.is_filtered]
    if not names:
        return ""
    return (
        f"The reward of {_listed(names)} leaves out groups without signal, so it is that of the "
        "prompts that were kept and rises with n by itself. Log a held-out evaluation."
    )


def _bound_to_prompts(cells: Sequence[Cell]) -> str:
    only = _only_value(cells, lambda cell: cell.prompts_per_step)
    if only is None or len(set(only)) < 2:
        return ""
    sizes = _sizes(cells)
    return (
        "Every n was run with prompts per step of its own, so the two cannot be told apart. Add "
        f"n = {sizes[-1]} at {only[0]:.0f} prompts a step, as n = {sizes[0]} had."
    )


def _bound_to_rate(cells: Sequence[Cell]) -> str:
    """Look at each B_p by itself for a learning rate that differs wherever n does."""
    if len(_sizes(cells)) < 2:
        return ""
    if all(cell.learning_rate is None for cell in cells):
        return (
            "The learning rates are unknown. If they grew with the batch, more rollouts also meant "
            f"a larger rate: to tell, {discriminating_run(cells)}. {_READING}"
        )
    for prompts in sorted({cell.prompts_per_step for cell in cells}):
        here = [cell for cell in cells if cell.prompts_per_step == prompts]
        only = _only_value(here, lambda cell: cell.learning_rate)
        if only is not None and 1 < len(only) == len(set(only)):
            return (
                "Every n was run at a learning rate of its own, so a gain of n may be one of the "
                f"rate: to tell, {discriminating_run(here)}. {_READING}"
            )
    return ""


def _one_seed(cells: Sequence[Cell]) -> str:
    if any(len(cell.runs) > 1 for cell in cells):
        return ""
    middle = sorted(cells, key=lambda cell: cell.rollouts_per_prompt)[len(cells) // 2]
    return (
        "Every setting was run once, so what seeds do is unknown and intervals hold evaluation "
        f"noise alone. Repeat {middle.label} with another seed."
    )


def _few_evaluations(cells: Sequence[Cell]) -> str:
    few = [run.name for cell in cells for run in cell.runs if len(run.compute_T) < _FEW_EVALUATIONS]
    if not few:
        return ""
    return f"{_listed(few)}: fewer than {_FEW_EVALUATIONS} evaluations. Evaluate more often."


def _listed(names: list[str], most: int = 3) -> str:
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def noise_floor(cells: Sequence[Cell]) -> float:
    """Return the standard error of one evaluation, the largest of all runs; 0 if unknown."""
    variances = [float(run.sampling_variance().max()) for cell in cells for run in cell.runs]
    return float(max(variances, default=0.0) ** 0.5)
