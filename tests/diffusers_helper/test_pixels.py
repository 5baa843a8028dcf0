"""Tests of the steps between latents and pixels: blending, rounding, guidance and previews."""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import HunyuanVideoFramepackPipeline
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import conv2d

from diffusers_helper.families.packing import MODES, Mode, Section, plan_sections
from diffusers_helper.framepack.joining import FrameBlender
from diffusers_helper.memory.accounting import Device
from diffusers_helper.output.previews import (
    TINY_FILE,
    LatentColours,
    LightDecoder,
    Preview,
    PreviewDecoder,
    TinyDecoder,
    VideoDecoder,
    to_uint8,
)
from diffusers_helper.sampling.guidance import guide
from tests.support.making import write_scene


def decoded(section: Section) -> Tensor:
    generator = torch.Generator().manual_seed(section.number)
    return torch.rand(section.decoded_frames, 2, 3, 3, generator=generator) * 2.4 - 1.2


def appended_by_diffusers(mode: Mode, parts: list[Tensor], overlaps: list[int]) -> Tensor:
    """Return all frames at once, as diffusers joins them; its third dimension is time."""
    stacked = [part.permute(3, 0, 1, 2)[None] for part in parts]
    video = stacked[0]
    for part, overlap in zip(stacked[1:], overlaps[1:], strict=True):
        pair = (part, video) if mode == "inverted" else (video, part)
        video = HunyuanVideoFramepackPipeline._soft_append(None, *pair, overlap)
    return video[0].permute(1, 2, 3, 0)


@settings(max_examples=40)
@given(count=st.integers(1, 7), window=st.integers(2, 9), mode=st.sampled_from(MODES))
def test_the_stream_of_final_frames_is_the_whole_video(count: int, window: int, mode: Mode) -> None:
    plan = plan_sections(max(1.0, count * 4 * window / 30), mode, window)
    blender = FrameBlender(mode)
    finals: list[np.ndarray] = []
    for section in plan:
        final, pending = blender.add(decoded(section), section)
        assert (len(final), len(pending)) == (section.final_frames, section.pending_frames)
        finals.insert(0 if mode == "inverted" else len(finals), final)
        # The frames that can be shown now are those that diffusers would have by now.
        done = plan.sections[: section.number]
        so_far = appended_by_diffusers(mode, [decoded(s) for s in done], [s.overlap_frames for s in done])
        shown = [pending, *finals] if mode == "inverted" else [*finals, pending]
        np.testing.assert_array_equal(np.concatenate(shown), to_uint8(so_far))
    assert sum(map(len, finals)) == plan.total_frames


def test_pixels_are_rounded_and_kept_in_range() -> None:
    values = torch.tensor([-9.0, -1.0, 0.0, 1 / 255, 0.999, 1.0, 9.0])
    assert to_uint8(values).tolist() == [0, 0, 128, 128, 255, 255, 255]
    levels = torch.arange(256) / 127.5 - 1
    assert to_uint8(levels).tolist() == list(range(256))


def test_guidance() -> None:
    generator = torch.Generator().manual_seed(4)
    positive, negative = torch.randn(2, 1, 16, 3, 4, 4, generator=generator)
    torch.testing.assert_close(guide(positive, negative, 1.0, 0.0), positive)
    torch.testing.assert_close(guide(positive, negative, 0.0, 0.0), negative)
    plain = guide(positive, negative, 5.0, 0.0)
    torch.testing.assert_close(plain, negative + 5 * (positive - negative))
    rescaled = guide(positive, negative, 5.0, 1.0)
    assert rescaled.std() == pytest.approx(positive.std().item(), rel=1e-5)
    half = guide(positive, negative, 5.0, 0.5)
    torch.testing.assert_close(half, (plain + rescaled) / 2)


def linear_latent(picture: Image.Image) -> Tensor:
    """Return a latent whose first channels hold the picture's colours, mixed, and the others noise."""
    size = picture.width // 8, picture.height // 8
    colours = torch.from_numpy(np.array(picture.resize(size, Image.Resampling.BOX))).float() / 255
    mixed = colours @ torch.tensor([[1.0, 0.4, 0.0], [-0.5, 1.2, 0.2], [0.3, 0.0, 0.9]]) - 0.7
    noise = torch.randn(*colours.shape[:2], 13, generator=torch.Generator().manual_seed(1)) * 0.1
    return torch.cat([mixed, noise], -1).permute(2, 0, 1)[None, :, None]


def test_the_preview_finds_the_colours_of_the_picture(tmp_path: Path) -> None:
    with Image.open(write_scene(tmp_path / "scene.png", 256, 192)) as picture:
        picture.load()
    latent = linear_latent(picture)
    colours = LatentColours(picture, latent)
    mirrored = colours.frames(torch.cat([latent, latent.flip(-1)], dim=2))
    small = picture.resize(mirrored[0].size, Image.Resampling.BICUBIC)
    assert len(mirrored) == 2
    for shown, expected in zip(
        mirrored, (small, small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), strict=True
    ):
        difference = np.asarray(shown).astype(float) - np.asarray(expected).astype(float)
        assert np.abs(difference).mean() < 12


def test_a_preview_of_an_even_picture_is_even() -> None:
    picture = Image.new("RGB", (64, 64), (10, 120, 200))
    colours = LatentColours(picture, torch.zeros(1, 16, 1, 8, 8))
    shown = np.asarray(colours.frames(torch.randn(1, 16, 1, 8, 8))[0]).astype(int)
    assert np.abs(shown - [10, 120, 200]).max() <= 1


def test_previews_come_at_most_twice_a_second_or_rarer_and_the_last_two_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Image.open(write_scene(tmp_path / "scene.png")) as picture:
        preview = Preview(tmp_path / "preview", 4 / 30)
        assert preview.show(linear_latent(picture), 1, 0) is None
        preview.fit(picture, linear_latent(picture))
    # The second one takes a tenth of a second, so for nine tenths there is no other.
    clock = iter([10.0, 10.01, 10.2, 10.6, 10.7, 11.5, 11.7, 11.71])
    # Only this module's clock is replaced: threads of other tests may look at the real one.
    slow = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("diffusers_helper.output.previews.time", slow)
    latents = torch.randn(1, 16, 9, 8, 8, generator=torch.Generator().manual_seed(2))
    paths = [preview.show(latents, 1, step) for step in range(1, 6)]
    assert [path and path.name for path in paths] == [
        "0001-001.webp", None, "0001-003.webp", None, "0001-005.webp",
    ]  # fmt: skip
    left = sorted(path.name for path in (tmp_path / "preview").iterdir())
    assert left == ["0001-003.webp", "0001-005.webp"]
    with Image.open(io.BytesIO((tmp_path / "preview" / left[0]).read_bytes())) as shown:
        assert (shown.format, getattr(shown, "n_frames", 1), shown.size) == ("WEBP", 9, (32, 32))


def test_a_preview_of_a_models_own_decoder_moves(tmp_path: Path) -> None:
    decoder = TinyDecoder()
    with torch.no_grad():
        for weights in decoder.parameters():
            weights.zero_()
        values = torch.linspace(-1, 1, 192)  # one for each colour, frame, row and column of a cell
        decoder.load_state_dict(decoder.state_dict() | {"straight.bias": values})
    frames = decoder.frames(torch.randn(1, 16, 2, 3, 5))
    cell = ((values.reshape(3, 4, 4, 4) + 1) * 127.5).round().permute(1, 2, 3, 0)
    assert torch.equal(frames, cell.repeat(2, 3, 5, 1).to(torch.uint8))

    preview = Preview(tmp_path / "preview", 4 / 30, decoder)
    path = preview.show(torch.randn(1, 16, 9, 8, 8), 1, 1)
    assert path is not None
    with Image.open(path) as shown:
        shown.load()
        assert (getattr(shown, "n_frames", 1), shown.size, shown.info["duration"]) == (18, (32, 32), 67)


def published_decoder(file: Path) -> dict[str, Tensor]:
    """Write random weights in the layout of the published decoder, beside those of an encoder."""
    generator = torch.Generator().manual_seed(4)
    weights = {"encoder.0.weight": torch.zeros(3)}
    for name, like in VideoDecoder().state_dict().items():
        weights[name] = 0.05 * torch.randn(like.shape, generator=generator)
    save_file(weights, file)
    return weights


def decoded_by_hand(weights: dict[str, Tensor], latents: Tensor, last_sides: int = 1) -> Tensor:
    """Return frames (F, 3, 4h, 4w) of latents (T, 16, h, w), all at once and from the numbered layers."""

    def conv(place: str, x: Tensor, padding: int = 1) -> Tensor:
        return conv2d(
            x, weights[f"decoder.{place}.weight"], weights.get(f"decoder.{place}.bias"), padding=padding
        )

    x = conv("1", torch.tanh(latents / 3) * 3).relu()
    for first, sides, times in ((3, 2, 1), (9, 2, 2), (15, last_sides, 2)):
        for block in range(first, first + 3):
            before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
            inner = conv(f"{block}.conv.0", torch.cat([x, before], 1)).relu()
            x = (conv(f"{block}.conv.4", conv(f"{block}.conv.2", inner).relu()) + x).relu()
        x = conv(f"{first + 4}.conv", x.repeat_interleave(sides, 2).repeat_interleave(sides, 3), padding=0)
        x = conv(str(first + 5), torch.stack([part for frame in x for part in frame.chunk(times)]))
    return conv("22", x.relu())[3:]


def test_the_published_decoder_makes_moving_previews(tmp_path: Path) -> None:
    file = tmp_path / "tiny.safetensors"
    weights, latents = published_decoder(file), torch.randn(1, 16, 3, 4, 5)
    decoder = VideoDecoder.read(file, torch.device("cpu"))
    frames = decoder.frames(latents)
    assert frames.shape == (9, 16, 20, 3)
    expected = (255 * decoded_by_hand(weights, latents[0].movedim(1, 0)).movedim(1, 3)).clamp(0, 255)
    assert frames.float().std() > 1
    assert (frames - expected).abs().max() <= 1
    light = LightDecoder.read(file, torch.device("cpu"))
    assert light is not None
    expected = decoded_by_hand(weights, latents[0].movedim(1, 0), 2).movedim(1, 3).clamp(0, 1)
    torch.testing.assert_close(light.decode(latents), expected, rtol=0, atol=0.01)
    path = Preview(tmp_path / "preview", 4 / 30, decoder).show(latents, 1, 1)
    assert path is not None
    with Image.open(path) as shown:
        assert (getattr(shown, "n_frames", 1), shown.size) == (5, (20, 16))

    del weights["decoder.9.conv.0.bias"]
    save_file(weights, file)
    assert VideoDecoder.read(file, torch.device("cpu")) is None
    assert VideoDecoder.read(tmp_path / "none", torch.device("cpu")) is None


def test_a_decoder_without_room_gives_way_to_colours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(PreviewDecoder):
        def frames(self, latents: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("Tried to allocate 2 GiB")

    with Image.open(write_scene(tmp_path / "scene.png")) as picture:
        preview = Preview(tmp_path / "preview", 4 / 30, Full())
        preview.fit(picture, linear_latent(picture))
        path = preview.show(linear_latent(picture).expand(-1, -1, 3, -1, -1), 1, 1)
    assert path is not None
    with Image.open(path) as shown:
        assert getattr(shown, "n_frames", 1) == 1  # three equal frames are one
    assert "colours alone from now on: Tried to allocate 2 GiB" in caplog.text


def test_a_preview_takes_no_memory_of_the_device() -> None:
    decoder = TinyDecoder()
    with Device() as account:
        latents = torch.randn(1, 16, 9, 8, 8)
        before = account.peak_bytes()
        assert before >= latents.nbytes
        assert decoder.frames(latents).shape == (36, 32, 32, 3)
        assert account.peak_bytes() == before


def test_a_decoder_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / TINY_FILE
    assert TinyDecoder.read(file, torch.device("cpu")) is None
    for content in (b"", b"no weights", (64).to_bytes(8, "little") + b"{}" + b" " * 62):
        file.write_bytes(content)
        assert TinyDecoder.read(file, torch.device("cpu")) is None
    save_file({"body.0.weight": torch.zeros(3)}, file)
    assert TinyDecoder.read(file, torch.device("cpu")) is None
