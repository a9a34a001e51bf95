"""Oracle tests: software that coremill's authors did not write judges what coremill makes."""
