"""The report kit: numbers, tables, pages and charts as every tool writes them. It knows nothing of what it shows."""
