"""The vocabulary of the demo model, and its two tokenizers.

The tokenizers drop all unknown words, which therefore carry no content. The Llama tokenizer yields exactly 95
tokens for the head of HunyuanVideo's prompt template, because the pipeline cuts off 95.
"""

from __future__ import annotations

from pathlib import Path

from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack import DEFAULT_PROMPT_TEMPLATE
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from training.scenes import COLOURS, SHAPES

CROP = int(DEFAULT_PROMPT_TEMPLATE["crop_start"])
VERBS = ("moves", "grows", "shrinks", "spins", "still", "zooms", "pans")
WAYS = ("right", "left", "up", "down", "in", "out")
SPEED_WORDS = ("slowly", "quickly")
CONTENT = (*COLOURS, *SHAPES, *VERBS, *WAYS, *SPEED_WORDS)
SYNONYMS: dict[str, tuple[str, ...]] = {
    "moves": ("move", "moving", "goes", "slides", "drifts", "flies", "rolls"),
    "right": ("rightwards", "rightward"),
    "left": ("leftwards", "leftward"),
    "up": ("upwards", "upward", "rises"),
    "down": ("downwards", "downward", "falls"),
    "grows": ("grow", "growing", "expands", "bigger", "larger"),
    "shrinks": ("shrink", "shrinking", "smaller"),
    "spins": ("spin", "spinning", "rotates", "rotate", "rotating", "turns", "turning"),
    "still": ("stay", "stands", "static", "nothing", "motionless"),
    "zooms": ("zoom", "zooming"),
    "pans": ("pan", "panning"),
    "ball": ("circle", "disc", "sphere"),
    "square": ("box", "block"),
    "diamond": ("rhombus",),
    "purple": ("violet",),
    "slowly": ("slow", "gently"),
    "quickly": ("fast", "quick", "rapidly"),
}
FILLERS = ("the", "a", "an", "and", "to", "camera", "stays", "view", "is", "it")
SPECIAL = ("<|pad|>", "<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|unknown|>")
PAD, BEGIN, END, UNKNOWN = SPECIAL[0], SPECIAL[1], SPECIAL[4], SPECIAL[5]


def vocabulary() -> dict[str, list[str]]:
    """Return the known words by group, as the page lists them."""
    other = [*FILLERS, *(word for words in SYNONYMS.values() for word in words)]
    return {
        "colours": list(COLOURS),
        "shapes": list(SHAPES),
        "actions": ["moves right", "moves left", "moves up", "moves down", "grows", "shrinks", "spins",
                    "stays still"],
        "camera": ["zooms in", "zooms out", "pans right", "pans left", "pans up", "pans down"],
        "speed": list(SPEED_WORDS),
        "other": sorted(set(other)),
    }  # fmt: skip


def _normaliser() -> normalizers.Sequence:
    steps = [normalizers.Lowercase(), normalizers.Replace(Regex(r"[^a-z]+"), " ")]
    for word, others in SYNONYMS.items():
        steps.append(normalizers.Replace(Regex(rf"\b({'|'.join(others)})\b"), word))
    steps.append(normalizers.Replace(Regex(rf"\b(?!({'|'.join(CONTENT)})\b)[a-z]+"), " "))
    return normalizers.Sequence(steps)


def _word_level() -> Tokenizer:
    words = [*SPECIAL, *CONTENT]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.normalizer = _normaliser()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _wrap(tokenizer: Tokenizer, length: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        pad_token=PAD,
        padding_side="right",
        model_max_length=length,
    )


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer for the template, whose head gets enough begin tokens to have 95 tokens."""
    tokenizer = _word_level()
    head = DEFAULT_PROMPT_TEMPLATE["template"].split("{}")[0]
    begins = CROP - len(tokenizer.encode(head).ids)
    if begins < 1:
        raise ValueError(f"the template's head has {CROP - begins} known tokens; expected less than {CROP}.")
    token = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([BEGIN] * begins) + " $A", special_tokens=[(BEGIN, token)]
    )
    return _wrap(tokenizer, CROP + 256)


def clip_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer for the bare prompt, which adds a begin and an end token."""
    tokenizer = _word_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BEGIN, END)],
    )
    return _wrap(tokenizer, 77)


def save_tokenizers(folder: Path) -> None:
    """Write both tokenizers into a model folder."""
    llama_tokenizer().save_pretrained(folder / "tokenizer")
    clip_tokenizer().save_pretrained(folder / "tokenizer_2")
