"""Videos of hostile strangers: damaged, of sizes and lengths that nobody has, or naming other files."""

import random
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.films import RED, adds_sound, comb, flat, replaced, write_film, write_streams
from tests.support.heic import box

_MOST = 2**32 - 1
# The endings of damaged films, each with a codec and a form of pixels.
_DAMAGED = {
    "mp4": ("libx264", "yuv420p"), "mkv": ("libx265", "yuv420p"), "webm": ("libvpx-vp9", "yuva420p"),
    "avi": ("mpeg4", "yuv420p"), "ts": ("mpeg2video", "yuv420p"), "mov": ("prores_ks", "yuva444p10le"),
    "flv": ("flv", "yuv420p"), "mpg": ("mpeg2video", "yuv420p"), "gif": ("gif", "rgb8"),
    "apng": ("apng", "rgba"), "wmv": ("wmv2", "yuv420p"),
}  # fmt: skip


def hostile_films(folder: Path) -> Iterator[Path]:
    """Write each of the films into a folder, and yield its path."""
    for name, content in _contents(folder):
        file = folder / name
        file.write_bytes(content)
        yield file


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    work = folder / "work"
    work.mkdir()
    yield from _damaged(work)
    film = write_film(work / "film.mp4").read_bytes()
    yield from _sizes(film, work)
    yield from _times(film, work)
    yield from _boxes(film)
    yield from _other_files(film, folder)
    yield from _other_streams(work)


def _damaged(work: Path) -> Iterator[tuple[str, bytes]]:
    """Cut films off, flip their bits, and put noise or nothing in their middle."""
    chance = random.Random(7)
    for ending, (codec, form) in _DAMAGED.items():
        whole = write_film(
            work / f"damaged.{ending}", [comb(number) for number in range(12)], codec=codec, form=form
        )
        content = whole.read_bytes()
        for share in (3, 8):
            yield f"cut at {share} tenths.{ending}", content[: len(content) * share // 10]
        for count in (20, 400):
            flipped = bytearray(content)
            for _ in range(count):
                flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            yield f"{count} bits flipped.{ending}", bytes(flipped)
        middle = slice(len(content) // 3, len(content) * 2 // 3)
        noise = chance.randbytes(middle.stop - middle.start)
        yield f"noise.{ending}", content[: middle.start] + noise + content[middle.stop :]
        yield f"zeros.{ending}", content[: middle.start] + bytes(len(noise)) + content[middle.stop :]
        yield f"twice and turned.{ending}", content + content[::-1]


def _sizes(film: bytes, work: Path) -> Iterator[tuple[str, bytes]]:
    entry = film.index(b"avc1", film.index(b"stsd"))
    for side in (0, 1, 16384, 65535):
        yield f"{side} pixels.mp4", film[: entry + 28] + struct.pack(">2H", side, side) + film[entry + 32 :]
    picture = BytesIO()
    Image.fromarray(np.ascontiguousarray(flat())).save(picture, "JPEG")
    header = picture.getvalue().index(b"\xff\xc0") + 5
    jpeg = picture.getvalue()
    large = jpeg[:header] + struct.pack(">2H", 16384, 16384) + jpeg[header + 4 :]
    for ending in ("avi", "mov"):
        jpegs = write_film(work / f"jpeg.{ending}", codec="mjpeg", form="yuvj420p").read_bytes()
        for name, new in (("square", b"\x40\0\x40\0"), ("low", b"\0\x01\xff\xff")):
            yield f"large JPEGs, {name}.{ending}", jpegs.replace(b"\0\x80\0\xc0", new)
        last = jpegs.rindex(b"\0\x80\0\xc0")
        yield f"a large JPEG at the end.{ending}", jpegs[:last] + b"\x40\0\x40\0" + jpegs[last + 4 :]
    yield "a JPEG.mp4", large
    gif = write_film(work / "canvas.gif", codec="gif", form="rgb8").read_bytes()
    yield "a canvas of 65535 pixels.gif", gif[:6] + b"\xff" * 4 + gif[10:]
    yield "frames beyond the canvas.gif", gif[:6] + struct.pack("<2H", 20, 20) + gif[10:]
    png = write_film(work / "png.mov", codec="png", form="rgb24").read_bytes()
    large_header = b"IHDR" + struct.pack(">2I", 16384, 16384) + b"\x08\x02\0\0\0"
    yield (
        "PNGs of 16384 pixels.mov",
        png.replace(png[png.index(b"IHDR") : png.index(b"IHDR") + 17], large_header),
    )
    small = write_film(work / "small.ts", codec="mpeg2video").read_bytes()
    for size in ((4000, 2400), (16, 16), (2000, 16)):
        other = write_film(work / "other.ts", (flat(size=size),) * 3, codec="mpeg2video").read_bytes()
        yield f"then {size[0]}x{size[1]} pixels.ts", small + other
    combs = [comb(number) for number in range(6)]
    halves = [
        write_film(work / "half.ts", pictures, options={"x264-params": "tff=1"}).read_bytes()
        for pictures in (combs, [comb(number, (384, 256)) for number in range(6)], combs)
    ]
    yield "interlaced in changing sizes.ts", b"".join(halves)
    shaped = write_film(work / "shaped.mp4", sample_aspect_ratio=2).read_bytes()
    for wide, high in ((1, _MOST), (2**31 - 1, 1), (0, 0), (65535, 1)):
        yield f"pixels of {wide} to {high}.mp4", replaced(shaped, b"pasp", 0, struct.pack(">2I", wide, high))


def _times(film: bytes, work: Path) -> Iterator[tuple[str, bytes]]:
    for rate in (0, 1, 2**31, _MOST):
        yield f"{rate} ticks a second.mp4", replaced(film, b"mdhd", 12, struct.pack(">I", rate))
    for length in (10**9, _MOST):
        yield f"{length} ticks.mp4", replaced(film, b"mdhd", 16, struct.pack(">I", length))
        yield f"{length} frames.mp4", replaced(film, b"stts", 8, struct.pack(">I", length))
        yield f"{length} ticks a frame.mp4", replaced(film, b"stts", 12, struct.pack(">I", length))
        yield f"{length} sizes.mp4", replaced(film, b"stsz", 8, struct.pack(">I", length))
        yield f"{length} places.mp4", replaced(film, b"stco", 4, struct.pack(">I", length))
        yield f"frames of {length} bytes.mp4", replaced(film, b"stsz", 4, struct.pack(">I", length))
    matroska = write_film(work / "times.mkv", rate=1).read_bytes()
    for scale in (0, 1, 2**24 - 1):
        value = b"\x83" + scale.to_bytes(3)
        yield f"a scale of {scale}.mkv", replaced(matroska, b"\x2a\xd7\xb1", 0, value)
    yield "a length of 10^300.mkv", replaced(matroska, b"\x44\x89\x88", 0, struct.pack(">d", 1e300))
    yield (
        "far times.mkv",
        write_film(work / "far.mkv", rate=1, times=[n * 10**7 for n in range(30)]).read_bytes(),
    )
    yield "a jump.mkv", write_film(work / "jump.mkv", rate=1, times=[*range(29), 10**9]).read_bytes()
    avi = write_film(work / "times.avi", codec="mpeg4").read_bytes()
    stream = avi.index(b"strh") + 8
    for scale, rate in ((0, 0), (1, _MOST), (_MOST, 1), (1, 0)):
        yield (
            f"{rate} over {scale}.avi",
            avi[: stream + 20] + struct.pack("<2I", scale, rate) + avi[stream + 28 :],
        )
    yield "10^9 frames.avi", avi[: stream + 32] + struct.pack("<I", 10**9) + avi[stream + 36 :]


def _boxes(film: bytes) -> Iterator[tuple[str, bytes]]:
    """Nest boxes, pack them, and give them sizes and contents that are too large."""
    start = film[: film.index(b"ftyp") - 4 + int.from_bytes(film[:4])]
    deep = b""
    for _ in range(20_000):
        deep = box(b"moov", deep) if len(deep) < 2**20 else deep
    yield "deep boxes.mp4", start + deep
    yield "a box of 2**63 bytes.mp4", start + struct.pack(">I4sQ", 1, b"moov", 2**63)
    yield "100,000 boxes.mp4", start + box(b"free") * 100_000 + film[len(start) :]
    yield "1,000 tracks.mp4", start + box(b"moov", box(b"trak", box(b"mdia")) * 1000)
    packed = zlib.compress(bytes(64 * 2**20), 9)
    compressed = box(b"dcom", b"zlib") + box(b"cmvd", struct.pack(">I", _MOST) + packed)
    yield "a packed header.mp4", start + box(b"moov", box(b"cmov", compressed))
    yield "40 MB of notes.mp4", film + box(b"moov", box(b"udta", box(b"\xa9cmt", bytes(40 * 2**20))))
    entry = film.index(b"avcC") - 4
    profile = box(b"colr", b"prof" + bytes(2**16))
    yield "a profile that ends outside.mp4", film[:entry] + profile + film[entry:]
    yield "no track.mp4", start + box(b"moov", box(b"mvhd", bytes(100)))
    samples = film.index(b"stsz")
    yield "no frames.mp4", film[: samples + 12] + bytes(4) + film[samples + 16 :]
    yield "empty.mp4", b""
    yield "only its head.mp4", start
    yield "a matrix of noise.mp4", replaced(film, b"tkhd", 44, random.Random(3).randbytes(36))
    for kind in (b"rmra", b"alis"):
        name = b"file:///etc/passwd\0"
        reference = box(b"rmda", box(b"rdrf", bytes(4) + b"url " + struct.pack(">I", len(name)) + name))
        yield f"{kind.decode()}.mov", box(b"moov", box(kind, reference))
    yield "external data.mov", film.replace(b"url \0\0\0\1", b"alis\0\0\0\0")


def _other_files(film: bytes, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name other files, which must not be read."""
    secret = folder / "secret.mp4"
    secret.write_bytes(film)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n"
    nested = f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{folder}/playlist.m3u8\n"
    manifest = (
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"><Period>'
        f"<AdaptationSet><Representation id='a' bandwidth='1' mimeType='video/mp4'><BaseURL>{secret}"
        "</BaseURL></Representation></AdaptationSet></Period></MPD>"
    )
    words = "1\n00:00:00,000 --> 00:00:09,000\nWords\n"
    texts = {
        "playlist.m3u8": playlist, "playlist.mp4": playlist, "playlist.ts": playlist, "nested.m3u8": nested,
        "nested.mkv": nested, "list.ffconcat": f"ffconcat version 1.0\nfile '{secret}'\nduration 1\n",
        "list.mp4": f"ffconcat version 1.0\nfile '{secret}'\n", "manifest.mpd": manifest,
        "manifest.mp4": manifest, "session.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 1 RTP/AVP 96\n",
        "script.avs": f'FFVideoSource("{secret}")\n', "words.srt": words, "words.mp4": words,
        "index.idx": "# VobSub index file, v7\n",
        "links.asx": f'<asx version="3.0"><entry><ref href="{secret}"/></entry></asx>',
        "rtsp.mov": f"RTSPtext\nrtsp://127.0.0.1/{secret.name}\n", "pictures%d.png": "",
        "tiles.mp4": f"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"{secret}\"\n#EXTINF:1,\nfile:{secret}\n",
    }  # fmt: skip
    for name, text in texts.items():
        yield name, text.encode()
    for ending in ("nut", "yuv", "h264", "ivf"):
        form = {"nut": "nut", "yuv": "rawvideo", "h264": "h264", "ivf": "ivf"}[ending]
        codec = {"yuv": "rawvideo", "ivf": "libvpx-vp9"}.get(ending, "libx264")
        path = write_film(folder / f"plain.{ending}", codec=codec, container_format=form)
        yield f"as {ending}.mp4", path.read_bytes()


def _other_streams(work: Path) -> Iterator[tuple[str, bytes]]:
    yield "only sound.mp4", write_streams(work / "sound.mp4", adds_sound(1)).read_bytes()
    yield "only sound.mkv", write_streams(work / "sound.mkv", adds_sound(1)).read_bytes()
    matroska = write_film(work / "attached.mkv").read_bytes()
    font = b"\x46\x6e\x89font.ttf\x46\x60\x88font/ttf\x46\x5c\x10\0\0\0" + bytes(30 * 2**20)
    attached = b"\x61\xa7" + struct.pack(">Q", 2**56 | len(font)) + font
    segment = matroska.index(b"\x18\x53\x80\x67") + 12
    whole = b"\x19\x41\xa4\x69" + struct.pack(">Q", 2**56 | len(attached)) + attached
    unknown = b"\x01" + b"\xff" * 7
    yield "a font of 30 MB.mkv", matroska[: segment - 8] + unknown + whole + matroska[segment:]
    note = bytes(16) + b"x" * (20 * 2**20)
    length = b"\xff" * (len(note) // 255) + bytes([len(note) % 255])
    annexed = b"\0\0\0\1\x06\x05" + length + note.replace(b"\0\0\0", b"\1\1\1") + b"\x80"
    yield "20 MB beside a frame.h264", annexed
    pattern = np.random.default_rng(5).integers(0, 255, (128, 192, 3), np.uint8)
    yield "noise that is a film.mp4", write_film(work / "noise.mp4", (pattern, flat(RED)) * 5).read_bytes()
