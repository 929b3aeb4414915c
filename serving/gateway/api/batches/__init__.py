"""OpenAI's Files and Batch API."""
