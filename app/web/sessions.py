"""Gradio's record of each open page and calling program, without the parts that only its deep links need."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import gradio as gr
from gradio.state_holder import SessionState, StateHolder


class LeanSessions(StateHolder):
    """The sessions of a page, without Gradio's description of every component for each session.

    The description takes tens of milliseconds during which the server answers nobody, so many simultaneous
    calls would block it.
    """

    def __init__(self, page: gr.Blocks) -> None:
        super().__init__()
        self.set_blocks(page)

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = _LeanSession(self.blocks)
        return super().__getitem__(session_id)


class _LeanSession(SessionState):
    def __init__(self, page: gr.Blocks) -> None:
        undescribed: Any = SimpleNamespace(default_config=page.default_config, blocks={})
        super().__init__(undescribed)

    def __setitem__(self, key: int, value: Any) -> None:
        block = self.blocks_config.blocks.get(key)
        if isinstance(block, gr.State):
            self.state_data[key] = value
            self._state_ttl[key] = (block.time_to_live, datetime.now())
        else:
            self.blocks_config.blocks[key] = value

    def _update_config(self, key: int) -> None: ...

    def _update_value_in_config(self, key: int, value: Any) -> None: ...
