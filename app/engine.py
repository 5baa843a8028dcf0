"""The engine, which runs in a process of its own: `python -m app.engine LOG_LEVEL`.

`EngineProcess` starts it. Commands come as JSON lines on stdin, and events go as JSON lines to stdout. The
engine ends when stdin is closed, so it never outlives the process that started it.
"""

import gc
import os
import sys
import traceback
from functools import partial

from app.jobs.making.engine_client import EventPipe, Order, open_pipes
from app.jobs.storage.commands import commands_of, ended_by
from app.machine import load_added_models
from app.miopen import conv_settings
from app.trials import local_with_trials
from diffusers_helper.events import Event, SectionFinished
from diffusers_helper.failures import failed_event
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder


def main() -> None:
    orders, events = open_pipes(sys.argv[1])
    load_added_models()
    gc.disable()  # collections while the libraries are imported take an eighth of that time and find nothing
    try:
        from diffusers_helper.job.card import CardLost
        from diffusers_helper.miopen_fallback import initialize_miopen_fallback
        from diffusers_helper.runner import Runner

        convolutions = initialize_miopen_fallback(
            **conv_settings(), on_first_call=events.name_trial, after_first_call=events.end_trial
        )
        runner = Runner(local_with_trials(os.environ), convolutions)
    except Exception as error:  # noqa: BLE001 - nothing can work here, and every job reports why
        while True:
            order = orders.take()
            events.send(failed_event(error, order.job))
    gc.freeze()  # the libraries stay, so that a collection need not visit their objects
    gc.enable()
    while True:
        order = orders.take()
        for route in order.blocklist:
            convolutions.block(route["case"], route["rung"], route["reason"])
        report = partial(_report, events, order, num_finished_sections(JobFolder(order.folder)))
        try:
            runner.run(order.folder, report, order.cancel)
        except CardLost:
            traceback.print_exc()
            os._exit(1)  # the next engine continues; an ordinary end could hang in the driver


def _report(events: EventPipe, order: Order, num_kept: int, event: Event) -> None:
    """Report an event. End the job after this section if a command asks for that, which may come later."""
    events.send(event)
    if isinstance(event, SectionFinished) and ended_by(commands_of(JobFolder(order.folder)), event, num_kept):
        order.cancel.cancel()


if __name__ == "__main__":
    main()
