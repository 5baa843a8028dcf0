"""The Models tab: the models, their parts and their downloads."""
