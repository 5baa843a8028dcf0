"""The ROCm nodes for ComfyUI: adapters over Longtake's library.

ComfyUI reads the two mappings here. Nothing of ComfyUI is imported until it asks for a node's inputs or runs
one.
"""

from rocm_nodes.registry import node_classes, node_names

NODE_CLASS_MAPPINGS = node_classes()
NODE_DISPLAY_NAME_MAPPINGS = node_names()

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
