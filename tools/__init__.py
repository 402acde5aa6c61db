"""Scripts of this repository, and the server that its tests, examples and benchmarks run on."""
