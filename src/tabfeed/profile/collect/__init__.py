"""What a profiler records during and after a run."""
