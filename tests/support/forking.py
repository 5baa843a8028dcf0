"""A program that imports the engine's libraries once, and forks a process that has them for each request.

It imports nothing of Longtake: each fork does that itself, with the variables and the folders of the request.
A request is a message of JSON on the socket that is standard input, with the fork's three standard streams.
"""

import gc
import importlib
import json
import os
import runpy
import site
import socket
import sys
import time

LIBRARIES = (
    "torch.export", "safetensors.torch", "accelerate", "av", "gguf", "PIL.Image", "numpy",
    "transformers.models.clip.modeling_clip", "transformers.models.clip.tokenization_clip",
    "transformers.models.llama.modeling_llama", "transformers.models.siglip.image_processing_pil_siglip",
    "transformers.models.siglip.modeling_siglip", "transformers.models.umt5.modeling_umt5",
    "diffusers.models.transformers.transformer_helios",
    "diffusers.models.transformers.transformer_hunyuan_video_framepack",
    "diffusers.models.autoencoders.autoencoder_kl_hunyuan_video",
    "diffusers.schedulers.scheduling_helios_dmd",
)  # fmt: skip


def main() -> None:
    """Fork until the socket closes. In a fork, return when its program has ended."""
    gc.disable()
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # else the first collection of each fork would copy all these objects
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        text, streams, _, _ = socket.recv_fds(requests, 2**20, 3)
        if not text:
            return
        if not (child := os.fork()):
            break
        os.waitpid(child, 0)
        requests.send(b"ended")
        for stream in streams:
            os.close(stream)
    # A second fork, whose parent ends at once, becomes a child of the program that has asked for it.
    between = os.getpid()
    if pid := os.fork():
        requests.send(str(pid).encode())
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    requests.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    _run(**json.loads(text))


def _run(module: str, arguments: list[str], environ: dict[str, str]) -> None:
    """Run a module as `python -P -m` does with these variables."""
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["", *arguments]
    sys.modules.pop("sitecustomize", None)
    importlib.invalidate_caches()
    site.execsitecustomize()
    gc.enable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
