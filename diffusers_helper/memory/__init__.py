"""The content of the device, which `budget` decides by integers and the store carries out.

Nothing is imported here, so that the planner's callers need no torch.
"""
