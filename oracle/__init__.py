"""Oracle tests: compare coremill's results with independently written software."""
