"""The colours, type and spacing of the page. The fonts are the system's; nothing comes from the network."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

_STYLES = ("style.css", "live/live.css", "queue/queue.css", "history/history.css")
CSS_FILES = [Path(__file__).parent / name for name in _STYLES]
ICON_FILE = Path(__file__).with_name("icon.svg")

_SANS = ("ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SF Mono", "DejaVu Sans Mono", "monospace")
_ACCENT = gr.themes.Color(
    name="accent", c50="#fff4f0", c100="#ffe4db", c200="#ffc7b6", c300="#ffa58e", c400="#ff8263",
    c500="#ff6a45", c600="#c8371b", c700="#a92c13", c800="#7f210e", c900="#561508", c950="#2d0a03",
)  # fmt: skip
_GREY = gr.themes.Color(
    name="grey", c50="#faf9f7", c100="#f6f5f2", c200="#e3e0d9", c300="#cdc8be", c400="#a29b8f",
    c500="#857e72", c600="#6a655c", c700="#4a453e", c800="#302d29", c900="#1c1a18", c950="#131211",
)  # fmt: skip
_ACCENTS = ("#c8371b", "#ff6a45")
_WELL = ("*background_fill_secondary",) * 2
_NONE = ("transparent",) * 2
_TEXT = ("*body_text_color",) * 2
_DIM = ("*body_text_color_subdued",) * 2
# The differences from Gradio's base theme, light and dark.
_COLOURS = {
    "body_background_fill": ("#f6f5f2", "#131211"),
    "body_text_color": ("#1d1b18", "#f0ede7"),
    "body_text_color_subdued": ("#6a655c", "#a29b8f"),
    "background_fill_primary": ("#ffffff", "#1c1a18"),
    "background_fill_secondary": ("#eeece6", "#262320"),
    "border_color_primary": ("#e3e0d9", "#302d29"),
    "block_background_fill": _NONE,
    "block_label_background_fill": _NONE,
    "block_label_text_color": _TEXT,
    "block_title_text_color": _TEXT,
    "block_info_text_color": _DIM,
    "input_background_fill": _WELL,
    "input_border_color": _NONE,
    "input_border_color_focus": _ACCENTS,
    "color_accent": ("#c8371b", None),
    "slider_color": _ACCENTS,
    "checkbox_background_color_selected": _ACCENTS,
    "button_primary_background_fill": _ACCENTS,
    "button_primary_background_fill_hover": ("#ad2e15", "#ff8263"),
    "button_primary_text_color": ("#ffffff", "#1a0d08"),
    "button_secondary_background_fill": _WELL,
    "button_secondary_text_color": _TEXT,
    "link_text_color": ("#a92c13", "#ff8263"),
    "link_text_color_hover": ("#7f210e", "#ffa58e"),
}
_SHAPES = {
    "block_border_width": "0px",
    "block_border_width_dark": "0px",
    "block_label_border_width": "0px",
    "block_shadow": "none",
    "block_padding": "0px",
    "block_label_text_weight": "600",
    "block_title_text_weight": "600",
    "block_title_text_size": "13px",
    "block_info_text_size": "13px",
    "panel_border_width": "0px",
    "layout_gap": "24px",
    "form_gap_width": "16px",
    "input_radius": "8px",
    "button_large_radius": "8px",
    "button_large_text_size": "15px",
}


def theme() -> gr.themes.Base:
    """Return the theme of the page, light and dark."""
    base = gr.themes.Base(primary_hue=_ACCENT, neutral_hue=_GREY, font=_SANS, font_mono=_MONO)
    colours = {name: light for name, (light, _) in _COLOURS.items()}
    colours |= {f"{name}_dark": dark for name, (_, dark) in _COLOURS.items() if dark is not None}
    return base.set(**colours, **_SHAPES)
