"""The dispatcher's routes, one module for each group."""
