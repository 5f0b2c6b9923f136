"""The dispatcher's routes, one module for each group: the bodies that they take and answer, then their functions."""
