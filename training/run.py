"""The command that trains the demo model further: the VAE's decoder, then the transformer.

``python -m training.run --device cuda`` begins with the weights of ``--start``, and writes checkpoints into
``--folder``, in files of less than 16 MiB. A run that is stopped, or that ends after ``--seconds``, goes on
when it is called again. ``--export FOLDER`` writes the model of the checkpoints instead.
"""

import argparse
import logging
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from training.export import export
from training.fast_conv import install
from training.render import Renderer, make_canvases
from training.tasks import Sides
from training.train_transformer import CHECKPOINT, DECODER, Plan, Trainer, read_parts
from training.vae import refine

LOG = logging.getLogger("training")
CANVAS_SEED = 20261201
# The bitmaps have as many pixels for pictures of side 256 as those of the evaluation for 128.
CANVAS_PIXELS = 896


def load_vae(start: Path, folder: Path) -> AutoencoderKLHunyuanVideo:
    """Return the VAE of a model folder, with the refined decoder if there is one."""
    vae = AutoencoderKLHunyuanVideo.from_pretrained(start / "vae").float().eval()
    if (folder / DECODER).exists():
        vae.load_state_dict(
            torch.load(folder / DECODER, weights_only=True, map_location="cpu")["weights"], strict=False
        )
    return vae


def load_parts(
    start: Path, folder: Path
) -> tuple[HunyuanVideoFramepackTransformer3DModel, AutoencoderKLHunyuanVideo]:
    """Return the transformer with the run's mean weights, and the VAE."""
    transformer = HunyuanVideoFramepackTransformer3DModel.from_pretrained(start / "transformer").float()
    state = read_parts(folder / CHECKPOINT)
    if state is None:
        raise FileNotFoundError(f"{folder} has no checkpoint of the transformer; train first.")
    transformer.load_state_dict(state["average"])
    return transformer.eval(), load_vae(start, folder)


def main() -> None:
    """Train or export as the command line asks."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="clock time of the transformer's training")
    parser.add_argument("--decoder-minutes", type=float, default=1.5, help="clock time of the decoder's")
    parser.add_argument("--seconds", type=float, default=1e9, help="when to stop, counted from the start")
    parser.add_argument("--start", type=Path, default=Path("assets/demo_model"), help="model to begin with")
    parser.add_argument("--folder", type=Path, default=Path(".training"), help="checkpoints and log")
    parser.add_argument("--export", type=Path, help="write the model of the checkpoints into this folder")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda is one GPU of either make"
    )
    parser.add_argument("--clips", type=int, default=Plan.clips, help="clips in a step at the smaller side")
    parser.add_argument("--sides", type=int, nargs=2, default=(128, 256), help="the sides of pictures")
    parser.add_argument("--canvases", type=int, default=96, help="bitmaps of each kind for grounds")
    parser.add_argument("--rate", type=float, default=Plan.lr, help="the transformer's learning rate")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="seed of the transformer's clips")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU; leave the option out to train on the processor")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.export:
        export(*load_parts(arguments.start, arguments.folder), arguments.start, arguments.export)
        return
    train(arguments, until=began + arguments.seconds)


def train(arguments: argparse.Namespace, until: float) -> None:
    """Refine the decoder and train the transformer, each for what is left of its time."""
    folder, sides = arguments.folder, Sides(*arguments.sides)
    folder.mkdir(parents=True, exist_ok=True)
    bitmaps = make_canvases(CANVAS_SEED, arguments.canvases, CANVAS_PIXELS, arguments.device)
    renderer = Renderer(bitmaps)
    LOG.info("%d bitmaps were drawn", len(bitmaps))
    vae = install(load_vae(arguments.start, folder))
    clips = max(1, arguments.clips // 15)
    vae = refine(vae, renderer, folder / DECODER, arguments.decoder_minutes, sides.large, clips)
    plan = Plan(arguments.minutes, arguments.clips, arguments.rate, arguments.seed, sides=sides)
    Trainer(arguments.start, folder, plan, vae, renderer).run(until)


if __name__ == "__main__":
    main()
