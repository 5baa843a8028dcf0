"""The ROCm nodes for ComfyUI: adapters over Longtake's library.

ComfyUI reads the two mappings here. Nothing of ComfyUI is imported until it asks for a node's inputs or runs
one.
"""

from rocm_nodes.registry import node_tables, watch

NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = node_tables()
watch(NODE_CLASS_MAPPINGS)

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
