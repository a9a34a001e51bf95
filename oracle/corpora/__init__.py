"""Programs, models and calls under test, and the generators of the files that the Rust tests read."""
