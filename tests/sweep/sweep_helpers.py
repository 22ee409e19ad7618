"""What the runs of a sweep leave."""

from apportion.run_log import read_groups


def left_by(folder):
    """Return all that others read of each run, byte for byte."""
    return {
        run.name: (
            (run / "evaluations.jsonl").read_bytes(),
            (run / "steps.jsonl").read_bytes(),
            read_groups(run).write_json(),
            {path.name: path.read_bytes() for path in sorted(run.glob("evaluations/*.parquet"))},
        )
        for run in sorted(folder.glob("n*"))
    }
