"""What is on the device: decided in `budget` by integers, carried out by the store.

Nothing is imported here, so that the planner's callers need no torch.
"""
