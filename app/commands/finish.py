"""The command `finish`, which enlarges, smooths, edits or joins videos, and follows the job."""

import argparse
import json
from contextlib import suppress
from pathlib import Path

from app.commands.arguments import (
    Parser,
    add_command,
    add_find_mode,
    add_outputs,
    apply_engine_environment,
    argument,
    switch,
)
from app.commands.generate import follow_jobs, open_service
from app.jobs.finishing import add_finishing, finishing_request, forecast
from app.jobs.job import Job, NoSuchJob
from app.jobs.queue import Queue
from app.jobs.service import JobService
from app.jobs.stdio import complain, say
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path
from diffusers_helper.finish.finishing import WORDS
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import SETTINGS

_WORDS = {name: word for name, word in WORDS.items() if name != "join"}


def add_finish(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = add_command(
        commands, "finish", finish_video,
        argument("video", metavar="VIDEO", help="a video file, or the id of a job of --outputs"),
        *(
            argument(f"--{name}", metavar=word.values, help=word.effect)
            if word.values
            else switch(f"--{name}", word.effect)
            for name, word in _WORDS.items()
        ),
        argument(
            "--join", action="append", default=[], metavar="OTHER",
            help="put another video or job behind it; give it once for each",
        ),
        argument("--fade", type=int, default=0, metavar="N", help="frames of a cross-fade between them"),
        argument("--sound", default="", metavar="FILE", help="the sound to add, in place of the video's own"),
        argument("--crf", type=int, default=16, metavar="N", help=SETTINGS["crf"].help),
        add_outputs,
        switch("--dry-run", "check everything, print what would be made, and exit"),
        switch("--json", "print only JSON events, one per line"),
        switch("--in-process", "run without the engine process, for debugging"),
        add_find_mode,
        help="enlarge, smooth, edit or join videos",
        description="Enlarge, smooth, edit or join videos, in this order: edit, enlarge, smooth.\n"
        "The last line on standard output is the path of the new video.",
    )  # fmt: skip
    parser.set_defaults(resume=None, branch=None)


def finish_video(arguments: argparse.Namespace) -> int:
    service = open_service(arguments)
    store = service.queue.store
    values = {**vars(arguments), "join": arguments.join and str(arguments.fade)}
    words = [name if values[name] is True else f"{name}:{values[name]}" for name in WORDS if values[name]]
    if not words and not arguments.sound:
        raise InputError("There is nothing to do to the video.", "Give at least one step. See --help.")
    source, *others = (_source(service, text) for text in (arguments.video, *arguments.join))
    sound = arguments.sound and str(expanded_path(arguments.sound, "sound").absolute())
    steps = ",".join(words) or "speed:1"
    request = finishing_request(source, steps, join=others, sound=sound, crf=arguments.crf)
    plan = forecast(store, request)
    if arguments.dry_run:
        say(json.dumps(plan) if arguments.json else plan["words"])
        return 0
    if not arguments.json:
        complain(plan["words"])
    if arguments.in_process:
        apply_engine_environment()
    return follow_jobs(service, lambda _: [add_finishing(Queue(store), request, source)], arguments)


def _source(service: JobService, text: str) -> Job | Path:
    """Find what a person names: a job, also by its video, or another file."""
    path = expanded_path(text, "video").absolute()
    folder = JobFolder(path.parent)
    if service.queue.store.outputs.is_dir():  # a look for a job would make the folder
        with suppress(NoSuchJob):
            job = service.job(folder.job if path == folder.video else text)
            if not path.exists() or job.folder.absolute() == folder.path:
                return job
    if path.exists():
        return path
    raise InputError(f"{text} is no file and no job; expected a video.", "Check the path, or the job's id.")
