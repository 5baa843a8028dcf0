"""A script that writes the pack of the nodes into the folder that it is given, such as a repository."""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from app.commands.pack import pack_files

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in ("_vendor", "web", "example_workflows"):
        shutil.rmtree(folder / name, ignore_errors=True)  # they may have files that are no longer in the pack
    for place, data in pack_files().items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)
