"""What the figures mean and how they are computed: pure functions of request records."""
