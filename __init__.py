"""The start of a checkout that lies in ComfyUI's folder custom_nodes: it loads the pack of the nodes.

The pack is built beside this file when ComfyUI starts for the first time, and after each update.
"""

import sys
from pathlib import Path

if "folder_paths" in sys.modules:  # ComfyUI's; other programs that find this file need nothing of it
    from .app.commands.pack import NAME, refresh_pack

    refresh_pack(Path(__file__).parent / NAME)
    from .longtake_rocm import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

    WEB_DIRECTORY = f"./{NAME}/web"
    __all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
