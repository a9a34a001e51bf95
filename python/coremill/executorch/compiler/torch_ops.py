"""Nothing: scripts import this module to register converters with coremltools, and ours are built in."""
