"""Number of replicas of each pool: the signals of a scaler, its decisions, and the scalers."""
