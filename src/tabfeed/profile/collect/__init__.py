"""What a profiler records while a loop runs."""
