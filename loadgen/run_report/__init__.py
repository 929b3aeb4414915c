"""Reports of a load test: the page of a run or of a sweep, the terminal, and progress."""
