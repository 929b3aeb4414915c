"""How many replicas each pool should have: what a scaler is told, what it answers, and the scalers."""
