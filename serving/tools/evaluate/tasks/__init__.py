"""Multiple-choice tasks in the form of the lm-evaluation-harness, from local files."""
