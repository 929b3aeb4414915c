"""What a person sees of a run: live progress, the table at the end, and report.html."""
