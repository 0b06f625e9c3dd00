"""One job of the queue, done by the very code that `translate` runs."""
