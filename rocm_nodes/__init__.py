"""The ROCm nodes for ComfyUI: adapters over Longtake's library, of which ComfyUI reads two mappings."""

from rocm_nodes.registry import node_tables, watch

NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = node_tables()
watch(NODE_CLASS_MAPPINGS)

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
