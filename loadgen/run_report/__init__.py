"""What a load test shows: the page of a run or of a sweep, the terminal, and progress."""
