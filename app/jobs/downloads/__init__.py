"""The downloads of models, which run beside the queue."""
