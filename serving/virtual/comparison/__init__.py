"""Two simulations, held against each other from their result.json files."""
