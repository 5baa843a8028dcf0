"""The command `export`, which writes a video in another format, and the same for the video of a job."""

import argparse
import errno
import os
import sys
from pathlib import Path

from tqdm import tqdm

from app.commands.arguments import Parser, add_command, argument
from app.jobs.job import Job, video_of
from app.jobs.stdio import say
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path

CODEC = argument(
    "--codec", default="", metavar="NAME",
    help="for an MP4: h264, hevc or av1, or one of these by a card, such as hevc_amf (default: h264)",
)  # fmt: skip


def add_export(commands: "argparse._SubParsersAction[Parser]") -> None:
    add_command(
        commands, "export", _export,
        argument("video", metavar="VIDEO", help="the file"),
        argument("target", metavar="TARGET", help="a new file: .mp4, .webm, .gif, .zip (PNG frames) or .png"),
        CODEC,
        argument("--at", type=float, default=0.0, metavar="SECONDS", help="the time of the frame for a .png"),
        help="write a video in another format",
        description="Write a video in another format. Its recipe goes along, except into a GIF.",
    )  # fmt: skip


def _export(arguments: argparse.Namespace) -> int:
    target = expanded_path(arguments.target, "target")
    _write(expanded_path(arguments.video, "video"), target, arguments.codec, arguments.at)
    say(str(target))
    return 0


def export_video(job: Job, target: Path, codec: str = "") -> Path:
    """Write a job's video into a folder, or to a file in the format that its ending and the codec name."""
    target = target / f"{job.id}.mp4" if target.is_dir() else target
    _write(video_of(job), target, codec)
    return target


def _write(video: Path, target: Path, codec: str, at: float = 0.0) -> None:
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 would tell its settings
    from diffusers_helper.output.export import exported, format_of

    name = format_of(target, codec) if codec or target.suffix else "h264"
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "it is there already")
        with tqdm(file=sys.stderr, disable=None, unit="frame", leave=False) as bar:
            for done, total in exported(video, target, name, at=at):
                bar.total = total
                bar.update(done - bar.n)
    except OSError as error:
        problem = f"{target} cannot be written ({error.strerror}); expected a new file or a folder."
        raise InputError(problem, "Choose another one.") from error
