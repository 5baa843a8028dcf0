"""The settings for one video, as one frozen and validated object with a JSON form.

Each setting's type, default, range and texts are defined once, here. The page's form, the command line, the
endpoint and the help of the nodes are made from these definitions.
"""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from diffusers_helper.attention.backends import BACKENDS, BLOCKS, FAST_8_BIT
from diffusers_helper.errors import InputError, PictureError
from diffusers_helper.families.packing import MAX_SECONDS, MIN_SECONDS, Mode
from diffusers_helper.families.step_caches import OFF, STEP_CACHE_LABELS
from diffusers_helper.finish.finishing import Finishing, finishing_lines
from diffusers_helper.lora_choice import choices_of, lora_summary
from diffusers_helper.setting import SettingInfo, check_names, lines_of, name_of, settings_of
from diffusers_helper.timed_pictures import TimedPicture, pictures_summary, timed_pictures_of

# A sampler is the function `sample_NAME` of the module NAME in `diffusers_helper.sampling`.
SAMPLERS = {"unipc": "UniPC", "euler": "Euler"}
VAE_PRECISIONS = {
    "auto": "Automatic", "fp32": "32 bit", "fp16": "16 bit", "bf16": "16 bit, wide range",
}  # fmt: skip
AUTO = "auto"
WEIGHT_TYPES = {
    AUTO: "Automatic", "default": "As in the files", "bf16": "16 bit, wide range", "fp16": "16 bit",
    "fp8_e4m3fn": "8 bit", "fp8_e5m2": "8 bit, wide range", "int8": "8 bit, whole numbers",
}  # fmt: skip
ATTENTIONS = {AUTO: "Automatic", **{name: backend.label for name, backend in BACKENDS.items()}}
KERNELS = {AUTO: "Automatic", **BLOCKS, FAST_8_BIT: "Fused, fast 8 bit"}
SHAPES = {"1:1": "Square", "4:3": "4:3", "16:9": "16:9, wide", "3:4": "3:4", "9:16": "9:16, tall"}
OWN, LIGHT = "own", "light"
AFTER, BEFORE = "after", "before"
_ORDERS = {"inverted": "End first · I2V", "forward": "Forward · F1"}

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """The settings of one video. On the CPU, the same request with the same model gives the same bytes."""

    # fmt: off
    image: Annotated[str, SettingInfo(
        "Picture", "The picture that the video starts from. Without one, it starts from the words alone.",
        "What to make", unit="file", scope="input", crop="crop")] = ""
    # `conditions.timeline.prompts_of` gives each section its words.
    prompt: Annotated[str, SettingInfo(
        "Prompt",
        "Describe what should happen in the video. A part such as [2.4s: ...] or [2.4s-4.8s: ...] says what "
        "happens at that time, and the text around it what happens otherwise.",
        "What to make", unit="text", scope="section",
    )] = ""
    negative: Annotated[str, SettingInfo(
        "Negative Prompt", "Describe what should not happen. It has an effect only if `cfg` is above 1.",
        "Look", unit="text", scope="section",
    )] = ""
    seconds: Annotated[float, SettingInfo(
        "Total Video Length (Seconds)",
        "The length of the video, which is rounded to whole sections of the model, such as 1.2 s.",
        "What to make",
        low=MIN_SECONDS, high=MAX_SECONDS, step=0.1, unit="seconds", scope="section",
    )] = 5.0
    seed: Annotated[int, SettingInfo(
        "Seed", "The number behind all randomness. The same seed and settings give the same video.", "Look",
        high=MAX_SEED, scope="section",
    )] = 31337
    steps: Annotated[int, SettingInfo(
        "Steps",
        "The number of denoising steps per section. More steps take more time; the model's own number suits "
        "it best.",
        "Look", low=1, high=100, scope="section", if_empty="the model's own",
    )] = 25
    mode: Annotated[Mode, SettingInfo(
        "Order", "From the end: steadier; from the start: can be extended.", "What to make", choices=_ORDERS,
        if_empty="the model's own",
    )] = "inverted"
    resolution: Annotated[int | None, SettingInfo(
        "Resolution",
        "The side, in pixels, of a square with the video's area. A higher value takes more time and memory; "
        "the model's own value suits it best.",
        "Size and output", low=64, high=1280, step=16, unit="pixels", if_empty="the model's own",
    )] = None
    guidance: Annotated[float, SettingInfo(
        "Distilled CFG Scale",
        "A higher value makes the video follow the prompt more closely, at no cost in time. The model's own "
        "value suits it best.",
        "Look", low=1, high=32, step=0.01, scope="section", if_empty="the model's own",
    )] = 10.0
    cfg: Annotated[float, SettingInfo(
        "CFG Scale",
        "The strength of classifier-free guidance. Above 1, the negative prompt has an effect and each step "
        "takes twice as long.",
        "Look", low=1, high=32, step=0.01, scope="section", if_empty="the model's own",
    )] = 1.0
    cfg_rescale: Annotated[float, SettingInfo(
        "CFG Re-Scale",
        "A higher value counteracts the oversaturated colours of a high `cfg`, at no cost in time.",
        "Look", low=0, high=1, step=0.01, scope="section",
    )] = 0.0
    crf: Annotated[int, SettingInfo(
        "MP4 Compression", "A lower value gives a better picture and a larger file. 0 counts as 1.",
        "Size and output", low=0, high=51,
    )] = 16
    sampler: Annotated[str, SettingInfo(
        "Sampler", "The solver that turns noise into the video.", "Look", choices=SAMPLERS, on_page=False,
        scope="section",
    )] = "unipc"
    model: Annotated[str, SettingInfo(
        "Model", "It has its own steps, guidance and size.", "What to make", unit="name|dir",
    )] = "demo"
    # `planning.profiles.Profile.budget` turns the next two into bytes.
    preserved_gb: Annotated[float | None, SettingInfo(
        "Memory Kept Free (GB)",
        "The GPU memory that weights leave free, in GB. Weights that do not fit beside it "
        "are streamed, so larger means slower. FramePack calls it GPU Inference Preserved Memory.",
        "Memory", low=0, high=128, step=0.1, unit="GB", if_empty="by the card's size", scope="memory",
    )] = None
    vram_cap_gb: Annotated[float | None, SettingInfo(
        "VRAM Cap (GB)",
        "The most GPU memory that a video may use, in GB. A lower cap streams more weights; "
        "a video that cannot fit is refused at the start.",
        "Memory", low=0.001, high=1024, step=0.1, unit="GB", if_empty="by the card's size",
        scope="memory",
    )] = None
    weight_dtype: Annotated[str, SettingInfo(
        "Weight Type",
        "The number format of the transformer's weights on the device; another one changes the pixels. In "
        "8 bit they need two thirds of the memory of 16 bit, as norms and embedders keep their precision. "
        "Automatic takes int8 if only that keeps them all on the device.",
        "Memory", choices=WEIGHT_TYPES,
    )] = "default"
    vae_tile: Annotated[int | None, SettingInfo(
        "VAE Tile (Pixels)",
        "The side of the tiles in which frames are encoded and decoded. Smaller tiles need less memory; "
        "another size changes the pixels slightly.",
        "Memory", low=64, high=1024, step=32, multiple=32, unit="pixels", if_empty="what fits",
        scope="vae",
    )] = None
    vae_precision: Annotated[str, SettingInfo(
        "VAE Precision",
        "The number format of the VAE; another one changes the pixels slightly. fp32 needs twice the memory, "
        "and is always used after an overflow.",
        "Memory", choices=VAE_PRECISIONS, scope="vae",
    )] = "auto"
    vae_chunk: Annotated[int, SettingInfo(
        "VAE Chunk (Latent Frames)",
        "The number of latent frames by which the VAE's temporal windows advance; 3 is the VAE's own. A "
        "lower number needs less memory; another number changes the pixels.",
        "Memory", low=1, high=8, scope="vae",
    )] = 3
    vae_threshold: Annotated[float, SettingInfo(
        "VAE Memory Threshold",
        "The share of the memory beside the weights that the plan may give to the VAE. A lower value may "
        "lead to smaller tiles, which change the pixels slightly.",
        "Memory", low=0.1, high=1, step=0.05, scope="memory",
    )] = 1.0
    vae_cleanup: Annotated[int, SettingInfo(
        "VAE Clean-Up Frequency",
        "The number of VAE tiles after which unused memory is returned to the driver; 0 means never. A lower "
        "number is slower; the pixels stay the same.",
        "Memory", low=0, high=1000, scope="memory",
    )] = 0
    crop: Annotated[float, SettingInfo(
        "Crop Position",
        "The part of the picture that is kept if the video has another shape: 0 keeps the left or upper end, "
        "1 the right or lower end.",
        "What to make", low=0, high=1, step=0.01, scope="input",
    )] = 0.5
    lora: Annotated[str, SettingInfo(
        "LoRA",
        "LoRAs add a style, a motion or a subject to the model. Each line names a safetensors file that was "
        "made for FramePack or HunyuanVideo, as FILE or FILE:WEIGHT.",
        "Look", unit="file[:weight]", parse_lines=choices_of, summary=lora_summary, scope="input",
    )] = ""
    prompt_blend: Annotated[int, SettingInfo(
        "Blend Between Prompts",
        "The number of sections over which one text of the prompt turns into the next, if it has times; 0 is "
        "a cut.",
        "Look", high=8, unit="sections", scope="section",
    )] = 0
    shift: Annotated[float, SettingInfo(
        "Shift",
        "A higher value spends more of the steps at high noise; 0 takes the model's own. LoRAs that were "
        "made for few steps name theirs, often 15 to 17.",
        "Look", low=0, high=100, step=0.1, scope="section",
    )] = 0.0
    step_cache: Annotated[str, SettingInfo(
        "Step Cache",
        "Some steps reuse what earlier ones computed, which saves time and changes the video. MagCache suits "
        "FramePack best; it skips about half of 25 steps.",
        "Look", choices=STEP_CACHE_LABELS, scope="section",
    )] = OFF
    attention: Annotated[str, SettingInfo(
        "Attention",
        "The kernel that computes attention; another one changes the pixels slightly. Automatic takes the "
        "fastest that gives the right results on this card. In slices is slower on GPUs, but works where "
        "PyTorch has no fast kernel.",
        "Memory", choices=ATTENTIONS,
    )] = AUTO
    end_image: Annotated[str, SettingInfo(
        "End Picture",
        "The picture that follows the video's last frame. Models that make the end first are led to it; in "
        "forward order, it only draws the video towards it.",
        "What to make", unit="file", scope="input", crop="end_crop",
    )] = ""
    end_crop: Annotated[float, SettingInfo(
        "Crop Position of the End Picture",
        "The part of the end picture that is kept, like `crop`.",
        "What to make", low=0, high=1, step=0.01, scope="input",
    )] = 0.5
    end_strength: Annotated[float, SettingInfo(
        "Strength of the End Picture",
        "A lower value lets the video end less like the end picture.",
        "What to make", low=0, high=1, step=0.05, scope="section",
    )] = 1.0
    loop: Annotated[str, SettingInfo(
        "Loop",
        "One more section leads from the video's end back to its start, so that the file plays in a loop. It "
        "needs the order End first.",
        "Size and output", choices={OFF: "No", "on": "Yes"}, scope="section",
    )] = OFF
    video: Annotated[str, SettingInfo(
        "Video to Continue",
        "The video that the new one goes on from, of any size, rate and codec. Its end takes the place "
        "of the picture.",
        "What to make", unit="file", scope="input", on_page=False, summary=name_of,
    )] = ""
    pictures: Annotated[str, SettingInfo(
        "Pictures at Times",
        "Pictures that the video comes to at their times, one on each line, as in 2.4s: photo.jpg, or with a "
        "crop, 2.4s@0.25: photo.jpg. In forward order, they only draw the video towards them.",
        "What to make", unit="time: file", parse_lines=timed_pictures_of,
        summary=pictures_summary,
        scope="input",
    )] = ""
    shape: Annotated[str, SettingInfo(
        "Shape", "The width to the height of a video from words alone.",
        "Size and output", choices=SHAPES,
    )] = "1:1"
    one_frame: Annotated[int, SettingInfo(
        "Change the Picture (One Frame)",
        "Above 0, one picture is made instead of a video: the start picture, changed as the prompt says. 9 "
        "suits most changes; a higher number changes more. It takes about a ninth of a section's time.",
        "Size and output", high=40,
    )] = 0
    vision_change: Annotated[str, SettingInfo(
        "Change from Picture to Picture",
        "How the share of the next picture in what the vision encoder sees changes: linearly from section to "
        "section, or both pictures in equal shares throughout.",
        "Look", choices={"linear": "Linear", "constant": "Constant"}, scope="section")] = "linear"
    extend: Annotated[str, SettingInfo(
        "New Part of a Continued Video",
        "After the video that is continued, or before it: from a start picture to its first frame.",
        "What to make", choices={AFTER: "After it", BEFORE: "Before it"}, scope="input", on_page=False,
    )] = AFTER
    clip_frames: Annotated[int, SettingInfo(
        "Frames per Clip",
        "The frames made at a time, rounded down to 4 n + 1; 0 takes the model's own. A shorter clip is seen "
        "sooner.", "Size and output", high=121)] = 0
    carried_frames: Annotated[int, SettingInfo(
        "Frames Carried Over",
        "The last frames of a clip that begin the next one, rounded down to 4 n + 1. More than 1 carry "
        "motion on, for which no model was trained.", "Size and output", low=1, high=33)] = 1
    hold_colours: Annotated[str, SettingInfo(
        "Hold Colours",
        "Each clip is led back to the colours of the video's first frame, unless its words are others.",
        "Look", choices={OFF: "No", "on": "Yes"}, scope="section")] = OFF
    decoder: Annotated[str, SettingInfo(
        "Decoder",
        "What turns latents into frames. The light one, TAEHV, is that of the previews: faster, with less "
        "detail.", "Look", choices={OWN: "The model's own", LIGHT: "Light"})] = OWN
    picture_shape: Annotated[str, SettingInfo(
        "Video Shape",
        "The width to the height to which the start picture is cropped; `crop` is the part to keep.",
        "What to make", choices={OWN: "As the picture", **SHAPES}, scope="input")] = OWN
    zoom: Annotated[float, SettingInfo(
        "Zoom",
        "A higher value takes a smaller part of the start picture: at 2, half its width or height. Below 1, "
        "a blurred copy is around it.",
        "What to make", low=0.25, high=8, step=0.01, scope="input")] = 1.0
    crop_y: Annotated[float | None, SettingInfo(
        "Crop Position, Up and Down",
        "0 keeps the upper end, 1 the lower end. `crop` is then for left and right alone.",
        "What to make", low=0, high=1, step=0.01, if_empty="as `crop`", scope="input")] = None
    then: Annotated[str, SettingInfo(
        "After the Video",
        "The steps that follow the finished video in a job of their own, such as enlarge:2,smooth:60.",
        "Size and output", unit="steps", parse_lines=finishing_lines, scope="input")] = ""
    finish: Annotated[str, SettingInfo(
        "Finish",
        "The steps that are done to `video`, instead of a new video: some of trim:0.5-2, join:12, reverse, "
        "loop, speed:0.5, colours, mute, enlarge:4 and smooth:60.",
        "Size and output", unit="steps", parse_lines=lambda text: [Finishing.of(text)], scope="input",
        on_page=False)] = ""
    join: Annotated[str, SettingInfo(
        "Videos to Join", "The videos that `finish` puts behind `video`, one on each line.",
        "Size and output", unit="file", parse_lines=lines_of, scope="input", on_page=False)] = ""
    sound: Annotated[str, SettingInfo(
        "Sound", "The sound of the finished video, in place of that of `video`.",
        "Size and output", unit="file", scope="input", on_page=False, summary=name_of)] = ""
    kernels: Annotated[str, SettingInfo(
        "Kernels",
        "Fused kernels compute norms and rotations in fewer passes through memory, which changes the pixels "
        "slightly. Compiled lets PyTorch make such kernels on NVIDIA's cards. Automatic tries both on "
        "the card; plain takes none but PyTorch's own. Fast 8 bit also rounds what weights in int8, fp8 or "
        "Q8_0 are multiplied with, which changes a layer by about 1 %.",
        "Memory", choices=KERNELS)] = AUTO
    # fmt: on

    def __post_init__(self) -> None:
        for name, setting in settings_of(type(self)).items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        if not self.image.strip():
            if self.is_before:
                raise PictureError("What comes before a video begins with a picture.", "Choose a picture.")
            object.__setattr__(self, "image", self.video)  # a video stands for its last frame
        if self.is_from_words and not self.prompt.strip():
            raise PictureError(
                "There is no picture and no prompt; a video needs one of them to start from.",
                "Choose a picture, or write a prompt.",
            )
        self._check_together()
        if self.finish:
            object.__setattr__(self, "mode", "forward")  # in which its segments are made
        if self.one_frame:
            object.__setattr__(self, "seconds", MIN_SECONDS)  # it has no length, and is one section

    def _check_together(self) -> None:
        is_forward = self.mode != "inverted"
        other_input = self.video or self.end_image
        for setting, is_wrong, expected, remedy in (
            ("loop", self.is_loop and is_forward, "off in forward order, which leads to no picture",
             "Set `mode` to inverted, or `loop` to off."),
            ("loop", self.is_loop and self.video, "off for a video that continues another one",
             "Set it to off."),
            ("extend", self.is_before and (is_forward or self.end_image or not self.video),
             f"{AFTER} in forward order, with an end picture, or without a video",
             f"Set `mode` to inverted, or `extend` to {AFTER}."),
            ("one_frame", self.one_frame and is_forward, "0 in forward order, which makes no picture",
             "Set `mode` to inverted, or `one_frame` to 0."),
            ("one_frame", self.one_frame and (other_input or self.is_loop or self.is_from_words),
             "0 unless there is a start picture, and no end picture, video or loop",
             "Set it to 0, or leave the others out."),
            ("finish", self.finish and not self.video, "steps for a `video`", "Give that, too."),
            ("finish", (self.join or self.sound) and not self.finish, "steps beside files for them",
             "Give some, or leave `join` and `sound` out."),
        ):  # fmt: skip
            if is_wrong:
                value = getattr(self, setting)
                raise InputError(setting=setting, value=value, expected=expected, remedy=remedy)

    @property
    def start_crop(self) -> tuple[float, float, float]:
        return self.crop, self.crop if self.crop_y is None else self.crop_y, self.zoom

    @property
    def is_before(self) -> bool:
        return self.extend == BEFORE

    @property
    def is_loop(self) -> bool:
        return self.loop != OFF

    @property
    def is_from_words(self) -> bool:
        return not self.image

    @property
    def timed_pictures(self) -> tuple[TimedPicture, ...]:
        return timed_pictures_of(self.pictures)

    @property
    def finishing(self) -> Finishing | None:
        return Finishing.of(self.finish) if self.finish else None

    @property
    def prompts(self) -> tuple[str, ...]:
        return (self.prompt, self.negative) if self.cfg > 1 else (self.prompt,)

    @property
    def depends_on_length(self) -> bool:
        return self.mode == "inverted" or bool(self.end_image or self.pictures)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        check_names(data, SETTINGS)
        return cls(**data)


SETTINGS = settings_of(GenerationRequest)
START_PICTURE, END_PICTURE, TIMED_PICTURES = "image", "end_image", "pictures"
PICTURES = tuple(name for name, setting in SETTINGS.items() if setting.is_picture)
FINISHING = ("finish", "join", "sound")  # what makes a request one for a finishing
FILES = (*PICTURES, "video")  # what the page and its endpoints take as uploads
CROPS = tuple(SETTINGS[name].crop for name in PICTURES)
