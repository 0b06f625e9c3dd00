"""A generator as a typed layer graph, and the runtimes that turn patches into patches."""
