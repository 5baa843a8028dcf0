"""The command `export`, which writes a video in another format, and the same for the video of a job."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from app.commands.arguments import Parser, add_command, argument
from app.jobs.job import Job, video_of
from app.jobs.stdio import say
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path, replacing

CODEC = argument(
    "--codec", default="", metavar="NAME",
    help="for an MP4: h264, hevc or av1, or one of these by a card, such as hevc_amf (default: h264)",
)  # fmt: skip


def add_export(commands: argparse._SubParsersAction[Parser]) -> None:
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
    convert(expanded_path(arguments.video, "video"), target, arguments.codec, arguments.at)
    say(str(target))
    return 0


def convert(video: Path, target: Path, codec: str = "", at: float = 0.0) -> None:
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 would tell its settings
    from diffusers_helper.output.export import exported, format_of

    name = format_of(target, codec)
    with _writing(target), tqdm(file=sys.stderr, disable=None, unit="frame", leave=False) as bar:
        for done, total in exported(video, target, name, at=at):
            bar.total = total
            bar.update(done - bar.n)


@contextmanager
def _writing(target: Path) -> Generator[None]:
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "it is there already")
        yield
    except OSError as error:
        problem = f"{target} cannot be written ({error.strerror}); expected a new file or a folder."
        raise InputError(problem, "Choose another one.") from error


def export_video(job: Job, target: Path, codec: str = "") -> Path:
    video = video_of(job)
    target = target / f"{job.id}{video.suffix}" if target.is_dir() else target
    if codec or target.suffix.lower() not in ("", video.suffix):
        convert(video, target, codec)
        return target
    with _writing(target), replacing(target) as temporary:
        shutil.copyfile(video, temporary)
    return target
