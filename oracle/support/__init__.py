"""Code that several tests share: arrays, distances, samples, and clients of the runtimes."""
