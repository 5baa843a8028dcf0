"""The command that trains the demo model from scratch and exports the folder that ships.

``python -m training.run`` trains on CPU cores; with ``--device cuda`` the transformer is trained on one GPU,
which is over a hundred times as fast. A stopped run that is started again resumes exactly from its last
checkpoint. With ``--start FOLDER`` it begins with the weights of a model folder and trains only the
transformer. Minutes are processor time, so a run can be paused; on a GPU they are clock time.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel

from training.encoders import make_encoders
from training.export import export
from training.parallel import launch
from training.start import start_from, weights_of
from training.train_transformer import CHECKPOINT, Plan, train
from training.transformer import build_transformer
from training.vae import build_vae, freeze, train_stage

LOG = logging.getLogger("training")
STAGES = ("encoders", "images", "clips", "freeze", "transformer", "refine", "export")
BEFORE_FREEZING = ("images", "clips")
STAGES_FROM_START = ("transformer", "export")
# Each stage's share of the time, and the stage with whose weights a VAE stage starts.
SHARES = {"images": 0.05, "clips": 0.17, "transformer": 0.70, "refine": 0.08}
SOURCES = {"images": "", "clips": "images", "refine": "frozen"}


def load_parts(
    folder: Path, start: Path | None = None, share: float = 1.0
) -> tuple[HunyuanVideoFramepackTransformer3DModel, AutoencoderKLHunyuanVideo]:
    """Return the trained transformer, and the VAE with its scale, refined if it was.

    The transformer has the run's mean weights. If ``share`` is below 1, they are averaged with those of
    ``start``, from which the run began; such a mean is often better than either.
    """
    transformer, vae = build_transformer(), build_vae()
    state = torch.load(folder / CHECKPOINT, weights_only=True, map_location="cpu")
    # Weights that were given and not trained further have no mean.
    weights = state.get("average") or state["model"]
    if start is not None and share < 1:
        before = weights_of(start)
        weights = {name: before[name].lerp(value, share) for name, value in weights.items()}
    transformer.load_state_dict(weights)
    frozen = torch.load(folder / "vae_frozen.pt", weights_only=True)
    refined = folder / "vae_refine.pt"
    vae.load_state_dict(
        torch.load(refined, weights_only=True)["average"] if refined.exists() else frozen["weights"]
    )
    vae.register_to_config(scaling_factor=frozen["scaling_factor"])
    return transformer.eval(), vae.eval()


def run_stage(name: str, arguments: argparse.Namespace, minutes: float) -> None:
    """Run one stage for ``minutes``. A stage that has used its time returns at once."""
    LOG.info("stage %s", name)
    folder, processes = arguments.folder, arguments.processes
    frozen = folder / "vae_frozen.pt"
    if name == "encoders":
        if not (folder / "model" / "text_encoder_2").exists():
            make_encoders(folder / "model")
    elif name == "freeze":
        if not frozen.exists():
            LOG.info("scaling factor %.4f", freeze(folder, "clips"))
    elif name == "transformer":
        plan = Plan(minutes, arguments.rate, arguments.seed, device=arguments.device)
        launch(train, (str(folder), plan), processes if arguments.device == "cpu" else 1)
    elif name == "export":
        transformer, vae = load_parts(folder, arguments.start, arguments.share)
        export(transformer, vae, folder / "model", arguments.target)
    elif name in BEFORE_FREEZING and frozen.exists():
        LOG.info("the latent space is fixed, so there is nothing to do")
    else:
        launch(train_stage, (str(folder), name, minutes, SOURCES[name]), processes)


def main() -> None:
    """Run the stages that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=115, help="processor time of the stages that run")
    parser.add_argument("--folder", type=Path, default=Path(".training"), help="checkpoints and logs")
    parser.add_argument(
        "--target", type=Path, default=Path("assets/demo_model"), help="folder to write the model to"
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="processes of one thread each"
    )
    parser.add_argument(
        "--only", choices=STAGES, action="append", help="run only this stage; may be repeated"
    )
    parser.add_argument("--start", type=Path, help="model folder to train on where there is no checkpoint")
    parser.add_argument("--rate", type=float, default=Plan.lr, help="the transformer's learning rate")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default=Plan.device,
        help="where the transformer is trained; cuda is one GPU, of NVIDIA or AMD",
    )
    parser.add_argument("--seed", type=int, default=Plan.seed, help="seed of the transformer's clips")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="share of the run in the exported weights; the rest comes from --start",
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU; leave the option out to train on the processor")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.start:
        start_from(arguments.start, arguments.folder)
    chosen = arguments.only or (STAGES_FROM_START if arguments.start else STAGES)
    whole = sum(SHARES.get(name, 0.0) for name in chosen) or 1.0
    for name in chosen:
        run_stage(name, arguments, arguments.minutes * SHARES.get(name, 0.0) / whole)


if __name__ == "__main__":
    main()
