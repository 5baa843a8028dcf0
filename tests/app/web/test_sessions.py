"""A session keeps the state of its own page, and no other page sees it."""

from __future__ import annotations

import gradio as gr

from app.web.sessions import LeanSessions


def test_each_session_has_a_state_of_its_own() -> None:
    with gr.Blocks() as page:
        state = gr.State("none")
    sessions = LeanSessions(page)
    first, second = sessions["first"], sessions["second"]
    first[state._id] = "a job"
    assert (first[state._id], second[state._id]) == ("a job", "none")
    assert page.blocks[state._id] is state
