"""The report kit: numbers, tables, pages and charts as every tool writes them. It is independent of the content."""
